//! Settings that every server supports.

use crate::given;

/// A test's settings for a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// Lines of its configuration.
    pub(crate) config: Vec<String>,
    /// True if it speaks TLS.
    pub(crate) tls: bool,
    /// True if confirmed writes survive the end of the machine.
    pub(crate) durable: bool,
}

impl Wishes {
    /// The requested lines, to be placed at the end: the last line of a setting wins.
    pub(crate) fn lines(&self) -> String {
        self.config.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Returns true if there are none.
    pub(crate) fn is_plain(&self) -> bool {
        self.config.is_empty() && !self.tls && !self.durable
    }

    /// Returns the URL in an environment variable. A server outside of the tests serves only
    /// requests without settings.
    pub(crate) fn given(&self, variable: &str) -> Option<String> {
        given::url(variable).filter(|_| self.is_plain())
    }
}
