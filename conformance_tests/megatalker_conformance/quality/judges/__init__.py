"""The judges that come along. No module of a judge's library is imported before the judge is loaded."""
