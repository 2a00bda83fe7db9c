"""The ports carried out on AWS: the only package that imports an SDK."""
