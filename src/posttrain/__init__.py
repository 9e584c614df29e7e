"""posttrain post-trains language models, exactly, from a laptop CPU to a cluster.

``import posttrain`` loads no torch; ``posttrain.train`` does when it is called.
"""

__version__ = "0.1.0"
