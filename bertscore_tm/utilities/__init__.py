"""What every folder may use: atomic files, warnings that point to the user's line, the version. Imports no folder."""
