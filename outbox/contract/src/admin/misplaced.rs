//! Messages where none should stand.

/// Messages of a route at positions that its relays had passed, or above the counters that number
/// them, as after a restore of single tables, an import, or a sequence that was set back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misplaced {
    /// The route, as its rows have it.
    pub route: String,
    /// Description for people: the messages, and their positions.
    pub text: String,
    /// Remedy that prevents it from happening again.
    pub remedy: String,
}

impl Misplaced {
    /// Creates a finding. For authors of stores.
    #[must_use]
    pub fn new(route: impl Into<String>, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { route: route.into(), text: text.into(), remedy: remedy.into() }
    }

    /// Logs the finding, as the check of a store does. For authors of stores.
    pub fn warn(&self) {
        let Self { route, text, remedy } = self;
        tracing::warn!(%route, "{text}; a relay delivers them within a minute. {remedy}");
    }
}
