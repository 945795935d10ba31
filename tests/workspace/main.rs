//! Checks of the workspace itself: rules that a compiler does not know and a reviewer forgets.

mod arrows;
mod crates;
mod files;
mod graph;
