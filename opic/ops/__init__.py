"""What is done to a whole crawl: backup and restore."""
