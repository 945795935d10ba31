//! A part of `tests/servers/prepare`: where the programs of a server are.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::home::Home;
use crate::missing::Missing;
use crate::pool::Pool;
use crate::program::Program;
use crate::server::{Kind, Server};
use crate::tree::Tree;

/// A row of the table in `tests/servers/prepare`, and the user of its programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Its name there.
    pub(crate) name: &'static str,
    /// The Debian release that its packages come from.
    pub(crate) release: &'static str,
    /// The user of that system that the server runs as.
    pub(crate) user: &'static str,
    /// An image that has the same programs, with the environment variable that names another one.
    #[cfg_attr(not(feature = "containers"), expect(dead_code, reason = "only containers have images"))]
    pub(crate) image: Option<(&'static str, &'static str)>,
}

impl Part {
    /// Returns the system that has it.
    ///
    /// # Errors
    ///
    /// The missing part and the remedy.
    pub(crate) fn tree(self) -> Result<Tree, String> {
        Tree::with(self.name, self.release)
    }

    /// Sets up and starts a server of this part; returns when it serves.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub(crate) fn start(self, kind: impl Kind + 'static) -> Result<Arc<Server>, Missing> {
        self.started(kind).map(Arc::new)
    }

    /// Returns a server that all programs of a run share; outside of a run, one of this program.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub(crate) fn shared(self, kind: impl Kind + 'static) -> Result<Arc<Server>, Missing> {
        match Pool::of_this_run() {
            Some(pool) => pool.server(self, kind).map(Arc::new),
            None => self.start(kind),
        }
    }

    /// Like [`start`](Self::start), for one owner.
    pub(crate) fn started(self, kind: impl Kind + 'static) -> Result<Server, Missing> {
        let home = self.home(&kind.name())?;
        Server::start(Box::new(kind), home)
    }

    /// Returns the folder of a server that another program has started.
    pub(crate) fn home_at(self, server: &str, path: &Path) -> Result<Home, Missing> {
        let tree = self.tree().map_err(|reason| Missing::absent(server, reason))?;
        Home::at(tree, self.user, path).map_err(|reason| Missing::failed(server, reason))
    }

    /// Returns a folder for a server: in a container where an engine has the image, else in the
    /// prepared folder.
    fn home(self, server: &str) -> Result<Home, Missing> {
        let without = match self.contained() {
            Ok(home) => return Ok(home),
            Err(reason) => reason,
        };
        let tree = self.tree().map_err(|reason| match &without {
            Some(without) => Missing::absent(server, format!("{without}; {reason}")),
            None => Missing::absent(server, reason),
        })?;
        Home::new(tree, self.user).map_err(|reason| Missing::failed(server, reason))
    }

    /// Returns a folder that a container sees too; or the reason why there is none, where there
    /// could be one.
    #[cfg(feature = "containers")]
    fn contained(self) -> Result<Home, Option<String>> {
        use std::sync::{Mutex, PoisonError};

        /// Images that were unavailable. They are not tried again: an unresponsive registry takes
        /// minutes to fail.
        static LOST: Mutex<Vec<String>> = Mutex::new(Vec::new());

        let Some((image, variable)) = self.image else { return Err(None) };
        crate::room::engine().map_err(Some)?;
        let image = crate::given::url(variable).unwrap_or_else(|| image.to_owned());
        let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.contains(&image) {
            return Err(Some(format!("no container of {image}, as was said before")));
        }
        Home::contained(&image, self.user).map_err(|reason| {
            eprintln!("{reason}");
            lost.push(image);
            Some(reason)
        })
    }

    #[cfg(not(feature = "containers"))]
    #[expect(clippy::unused_self, reason = "with the feature it is used")]
    fn contained(self) -> Result<Home, Option<String>> {
        Err(None)
    }

    /// Returns a client of this part, such as `/usr/bin/redis-cli`. Without the part it is this
    /// machine's client, because a server that was given by URL may be queried where none can be
    /// started.
    pub(crate) fn client(self, program: &str) -> Program {
        self.tree().map_or_else(
            |_| Program::here(Command::new(program.rsplit('/').next().unwrap_or(program))),
            |tree| tree.command(self.user, "/", program),
        )
    }
}
