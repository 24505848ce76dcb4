"""The official modules behind the plug-in contract: slow, plain, and what every other backend is compared with."""
