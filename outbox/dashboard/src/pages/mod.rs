//! The pages.

pub(crate) mod act;
pub(crate) mod audit;
pub(crate) mod causes;
pub(crate) mod confirm;
pub(crate) mod dead;
pub(crate) mod key;
pub(crate) mod keys;
pub(crate) mod login;
pub(crate) mod message;
pub(crate) mod messages;
pub(crate) mod overview;
pub(crate) mod relays;
pub(crate) mod scheduled;
pub(crate) mod settings;
pub(crate) mod topics;
