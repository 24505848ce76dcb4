"""Measurements that run as ``megatalker bench NAME``; each says with ``--help`` what it takes."""
