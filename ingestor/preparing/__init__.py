"""From a raw block to the chunks and tokens of its documents; runs in the prepare processes."""
