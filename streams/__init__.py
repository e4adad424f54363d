"""The pipeline of pure stages, and the Faust worker around it."""
