//! What every server can be asked for.

use crate::given;

/// What a test wants of a server beside the server itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// Lines of its configuration.
    pub(crate) config: Vec<String>,
    /// Whether it speaks TLS.
    pub(crate) tls: bool,
    /// Whether what it has confirmed survives the end of the machine.
    pub(crate) durable: bool,
}

impl Wishes {
    /// The lines that were asked for, to stand at the end: the last line of a setting wins.
    pub(crate) fn lines(&self) -> String {
        self.config.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Whether there are none.
    pub(crate) fn is_plain(&self) -> bool {
        self.config.is_empty() && !self.tls && !self.durable
    }

    /// The URL in a variable of the environment. What somebody else runs serves only who has no wishes.
    pub(crate) fn given(&self, variable: &str) -> Option<String> {
        given::url(variable).filter(|_| self.is_plain())
    }
}
