//! Promise P3 in the store: within a key, the order of positions is the order of commits.
