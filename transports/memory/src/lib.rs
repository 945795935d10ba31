//! Topics, consumer groups and acknowledgements within one process.
