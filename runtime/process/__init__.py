"""What a process prints on a terminal, and how it ends when the system takes its pages away."""
