"""Small changes of `domain`, `engine` and `kpl` drawn by chance, and who notices each."""
