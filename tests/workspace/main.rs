//! Checks of the workspace itself: rules that a compiler does not know and a reviewer forgets.

mod anchors;
mod architecture;
mod arrows;
mod book;
mod compare;
mod comparison;
mod crates;
mod deploy;
mod errors;
mod files;
mod graph;
mod growth;
mod image;
mod listings;
mod publish;
mod readme;
mod root;
mod scripts;
mod steps;
mod versions;
mod voice;

/// Returns the folder of the repository.
fn root() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../..").into()
}
