//! Environment of every command: settings, output, and the database.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;

use outbox::admin::Actor;
use outbox::{Admin, Store, Transport};

use crate::args::Global;
use crate::exit::Failed;
use crate::open::{self, Database, Missing};
use crate::out::{Out, remark};
use crate::settings::Settings;
use crate::{escape, redact};

/// The program, once its settings are read.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) out: Out,
    yes: bool,
    actor: Actor,
}

impl App {
    /// Reads the settings.
    pub(crate) fn new(global: &Global) -> Result<Self, Failed> {
        let settings = Settings::read(global)?;
        let actor = global.actor.as_ref().map(Actor::new).unwrap_or_default();
        Ok(Self { settings, out: Out::new(global.json, global.table), yes: global.yes, actor })
    }

    /// Returns the operations of a store, recorded under the name of this program's user.
    pub(crate) fn acting<'s>(&self, store: &'s dyn Database) -> Box<dyn Admin + 's> {
        store.acting_as(self.actor.clone())
    }

    /// Connects to the database, whose tables must be ready.
    pub(crate) async fn store(&self) -> Result<Arc<dyn Database>, Failed> {
        let store = open::store(&self.settings, Missing::Refuse).await?;
        Store::check(&*store).await?;
        Ok(store)
    }

    /// Opens the broker of the settings.
    pub(crate) fn transport(&self) -> Result<Arc<dyn Transport>, Failed> {
        open::transport(&self.settings, self.settings.transport()?, None)
    }

    /// Returns true if the operator is asked before something is removed.
    pub(crate) const fn asks(&self) -> bool {
        !self.yes
    }

    /// Asks before something is removed. Without a terminal it can't ask: `--yes` is needed.
    pub(crate) fn confirm(&self, what: &str) -> Result<(), Failed> {
        if !self.asks() {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Failed::usage(format!(
                "not done: this would {what}, and no terminal is there to confirm it; add --yes, or look first \
                 with --dry-run"
            )));
        }
        let mut err = io::stderr().lock();
        write!(err, "{}? [y/N] ", redact::hide(&escape::line(&capitalized(what))))?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        remark("not done");
        Err(Failed::Interrupted)
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Returns a number with its noun: `1 message`, `2 messages`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Returns a word that a shell takes as it is.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@+,".contains(char);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_word_for_a_shell_stays_one_word() {
        assert_eq!(quoted("order-1"), "order-1");
        assert_eq!(quoted("$(reboot) it's"), "'$(reboot) it'\\''s'");
        assert_eq!(quoted("-rf"), "'-rf'");
    }
}
