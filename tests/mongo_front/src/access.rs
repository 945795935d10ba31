//! Authentication of a connection, and its permissions.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};

use crate::commands::Command;
use crate::hello;
use crate::refusal::{AUTHENTICATION_FAILED, Refusal, UNAUTHORIZED};
use crate::scram::{MECHANISM, Scram};

/// Commands that are allowed before authentication.
const OPEN: &[&str] = &["ping", "buildInfo", "buildinfo", "endSessions"];

/// Authentication state of one connection.
pub(crate) struct Access {
    user: Option<(String, String)>,
    conversation: Option<Scram>,
    granted: bool,
}

impl Access {
    /// State of a new connection to a server that accepts only this user; without one, everyone.
    pub(crate) fn new(user: Option<(String, String)>) -> Self {
        Self { granted: user.is_none(), user, conversation: None }
    }

    /// Answers a command that is about authentication, or that requires it; `None` for one that may
    /// run.
    pub(crate) fn check(&mut self, command: &Command) -> Option<Result<Document, Refusal>> {
        match command.name.as_str() {
            "saslStart" => Some(self.start(&command.spec)),
            "saslContinue" => Some(self.go_on(&command.spec)),
            name if self.granted || hello::is_hello(name) || OPEN.contains(&name) => None,
            name => Some(Err(Refusal::new(UNAUTHORIZED, format!("Command {name} requires authentication")))),
        }
    }

    fn start(&mut self, spec: &Document) -> Result<Document, Refusal> {
        let (name, password) = self.user.as_ref().ok_or_else(failed)?;
        if spec.get_str("mechanism").ok() != Some(MECHANISM) {
            return Err(failed());
        }
        let nonce: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
        let salt = std::array::from_fn(|_| fastrand::u8(..));
        let begun = Scram::begin(payload(spec)?, name, password, (salt, &nonce));
        let (conversation, answer) = begun.ok_or_else(failed)?;
        self.conversation = Some(conversation);
        Ok(said(answer, false))
    }

    fn go_on(&mut self, spec: &Document) -> Result<Document, Refusal> {
        match self.conversation.take() {
            Some(conversation) => {
                let answer = conversation.finish(payload(spec)?).ok_or_else(failed)?;
                self.granted = true;
                Ok(said(answer, true))
            }
            // A driver may send one more message after success.
            None if self.granted => Ok(said(String::new(), true)),
            None => Err(failed()),
        }
    }
}

fn payload(spec: &Document) -> Result<&[u8], Refusal> {
    match spec.get("payload") {
        Some(Bson::Binary(payload)) => Ok(&payload.bytes),
        _ => Err(failed()),
    }
}

fn said(answer: String, done: bool) -> Document {
    let payload = Binary { subtype: BinarySubtype::Generic, bytes: answer.into_bytes() };
    doc! { "conversationId": 1, "done": done, "payload": payload, "ok": 1.0 }
}

/// Refuses without a reason.
fn failed() -> Refusal {
    Refusal::new(AUTHENTICATION_FAILED, "Authentication failed.")
}
