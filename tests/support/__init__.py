"""Cases, files and checks that several test modules share."""
