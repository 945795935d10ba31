//! Real servers for tests: by URL, or as child processes on free ports.
