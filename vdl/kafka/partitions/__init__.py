"""What serving records needs beside the handlers: checks off the loop, sessions, pace, sizes."""
