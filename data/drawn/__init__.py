"""Images that are drawn by a program: faces and patterns."""
