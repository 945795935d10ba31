//! Amount of measuring.

use clap::ValueEnum;

/// Amount of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// All parts in about five minutes.
    Quick,
    /// For figures to be quoted.
    Full,
}

impl Profile {
    /// The first with [`Quick`](Self::Quick), the second with [`Full`](Self::Full).
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}
