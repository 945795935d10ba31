//! Access: who may look, and who may act.

mod failures;
mod network;
mod secret;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use failures::Failures;
use network::Network;
use secret::Secret;

use crate::format::count;
pub(crate) use secret::{MacKey, random};

/// Minimum length of passwords and tokens, in bytes.
const SHORTEST_SECRET: usize = 12;

/// Headers that proxies add. A request with one of them does not come from this machine's user.
const FORWARDED: &[&str] = &["forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"];

/// Rights of a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Sees everything but payloads, and changes nothing.
    ReadOnly,
    /// Sees payloads, and carries out every operation.
    Operator,
}

/// A person or program with a secret of its own.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    role: Role,
    secret: Secret,
    secret_bytes: usize,
}

impl User {
    /// Creates a user who carries out every operation.
    pub fn operator(name: impl Into<String>, secret: impl AsRef<str>) -> Self {
        Self::new(name, Role::Operator, secret)
    }

    /// Creates a user who only looks.
    pub fn read_only(name: impl Into<String>, secret: impl AsRef<str>) -> Self {
        Self::new(name, Role::ReadOnly, secret)
    }

    /// Creates a user. The secret itself is not kept.
    pub fn new(name: impl Into<String>, role: Role, secret: impl AsRef<str>) -> Self {
        let secret = secret.as_ref();
        Self { name: name.into(), role, secret: Secret::new(secret), secret_bytes: secret.len() }
    }
}

/// Decides who is let in. The default is [`loopback`](Self::loopback).
#[derive(Clone, Debug)]
pub struct Access(Mode);

#[derive(Clone, Debug)]
enum Mode {
    Loopback,
    Tokens(Vec<User>),
    Basic(Vec<User>),
    Proxy { header: HeaderName, proxies: Vec<Network>, operators: Vec<String> },
}

impl Default for Access {
    fn default() -> Self {
        Self::loopback()
    }
}

impl Access {
    /// Lets in connections from this machine only. Everybody on it is an operator.
    ///
    /// The service must serve with [`into_make_service_with_connect_info::<SocketAddr>`][serve]:
    /// without the address of the peer, every request is refused. Requests that a proxy forwards,
    /// and those for another host name than this machine's, are refused.
    ///
    /// [serve]: axum::Router::into_make_service_with_connect_info
    #[must_use]
    pub const fn loopback() -> Self {
        Self(Mode::Loopback)
    }

    /// Lets in whoever has a token, as `Authorization: Bearer` or typed into a form.
    ///
    /// # Errors
    ///
    /// A secret is shorter than 12 bytes, a name is missing or there twice, or no user is named.
    pub fn tokens(users: impl IntoIterator<Item = User>) -> Result<Self, AccessError> {
        checked(users).map(|users| Self(Mode::Tokens(users)))
    }

    /// Lets in whoever has a name and a password, which the browser asks for. Use it with TLS.
    ///
    /// # Errors
    ///
    /// As [`tokens`](Self::tokens).
    pub fn basic(users: impl IntoIterator<Item = User>) -> Result<Self, AccessError> {
        checked(users).map(|users| Self(Mode::Basic(users)))
    }

    /// Lets in whoever a trusted proxy has authenticated: it writes the name into this header.
    /// Proxies are addresses or networks, as `10.0.0.0/8`; requests of other peers are refused. The
    /// named operators carry out operations, and all others look.
    ///
    /// The proxy must remove the header from what it is sent itself.
    ///
    /// # Errors
    ///
    /// The header or a network is invalid, or no proxy is named.
    pub fn proxy<P: AsRef<str>, O: Into<String>>(
        header: &str,
        proxies: impl IntoIterator<Item = P>,
        operators: impl IntoIterator<Item = O>,
    ) -> Result<Self, AccessError> {
        let header =
            header.parse().map_err(|_| AccessError(format!("{header:?} is not a valid name of a header")))?;
        let proxies: Vec<Network> = proxies
            .into_iter()
            .map(|network| network.as_ref().parse().map_err(AccessError))
            .collect::<Result<_, _>>()?;
        if proxies.is_empty() {
            return Err(AccessError("no proxy is configured; give its addresses".to_owned()));
        }
        let operators = operators.into_iter().map(Into::into).collect();
        Ok(Self(Mode::Proxy { header, proxies, operators }))
    }

    /// Returns true if visitors log in with a form.
    pub(crate) const fn has_form(&self) -> bool {
        matches!(self.0, Mode::Tokens(_))
    }

    /// Describes the mode, without secrets.
    pub(crate) fn text(&self) -> String {
        match &self.0 {
            Mode::Loopback => "this machine only".to_owned(),
            Mode::Tokens(users) => format!("tokens of {}", count(users.len() as u64, "user")),
            Mode::Basic(users) => format!("names and passwords of {}", count(users.len() as u64, "user")),
            Mode::Proxy { header, proxies, .. } => {
                let proxies: Vec<String> = proxies.iter().map(ToString::to_string).collect();
                format!("header {header} of the proxies {}", proxies.join(", "))
            }
        }
    }
}

fn checked(users: impl IntoIterator<Item = User>) -> Result<Vec<User>, AccessError> {
    let users: Vec<User> = users.into_iter().collect();
    if users.is_empty() {
        return Err(AccessError("no user is configured; name at least one".to_owned()));
    }
    for (at, user) in users.iter().enumerate() {
        if user.name.is_empty() || users[..at].iter().any(|other| other.name == user.name) {
            return Err(AccessError(format!("the name of the user {:?} is empty, or used twice", user.name)));
        }
        if user.secret_bytes < SHORTEST_SECRET {
            return Err(AccessError(format!(
                "the secret of {:?} has {} bytes; take at least {SHORTEST_SECRET}, from a random source",
                user.name, user.secret_bytes
            )));
        }
    }
    Ok(users)
}

/// Reason why an [`Access`] is invalid. It shows no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessError(String);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "access to the dashboard: {}", self.0)
    }
}

impl std::error::Error for AccessError {}

/// A visitor who was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Reason why a visitor is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The service does not tell the address of peers.
    UnknownPeer,
    /// The peer is on another machine.
    Remote(IpAddr),
    /// A proxy forwarded the request.
    Forwarded,
    /// The request is for a name that this machine does not have.
    Host(String),
    /// The peer is not one of the proxies.
    NotAProxy(IpAddr),
    /// The proxy named no user.
    Unnamed(String),
    /// No user is logged in.
    Anonymous,
    /// Name and password are needed.
    NoPassword,
    /// Token, name or password are wrong.
    Wrong,
    /// Too many attempts failed.
    TooMany(Duration),
}

/// The gate: an access, and the failures of those who tried.
#[derive(Debug)]
pub(crate) struct Gate {
    access: Access,
    failures: Mutex<Failures>,
}

/// Facts about a request.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'r> {
    pub(crate) headers: &'r HeaderMap,
    pub(crate) host: &'r str,
    pub(crate) peer: Option<IpAddr>,
    /// Name of the user of a valid session.
    pub(crate) user: Option<&'r str>,
    pub(crate) now: Instant,
}

impl Gate {
    /// Opens a gate.
    pub(crate) fn new(access: Access) -> Self {
        Self { access, failures: Mutex::default() }
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// Decides about a request. Hosts beside this machine's may be allowed by name.
    pub(crate) fn admit(&self, asked: Asked<'_>, hosts: &[String]) -> Result<Principal, Refusal> {
        match &self.access.0 {
            Mode::Loopback => loopback(asked, hosts),
            Mode::Tokens(users) => {
                if let Some(token) = bearer(asked.headers) {
                    return self.attempt(asked.peer, asked.now, || by_token(users, token));
                }
                let known = users.iter().find(|user| Some(user.name.as_str()) == asked.user);
                known.map(principal).ok_or(Refusal::Anonymous)
            }
            Mode::Basic(users) => {
                let Some((name, password)) = basic(asked.headers) else { return Err(Refusal::NoPassword) };
                self.attempt(asked.peer, asked.now, || by_password(users, &name, &password))
            }
            Mode::Proxy { header, proxies, operators } => {
                let peer = asked.peer.ok_or(Refusal::UnknownPeer)?;
                if !proxies.iter().any(|network| network.contains(peer)) {
                    return Err(Refusal::NotAProxy(peer));
                }
                let mut names = asked.headers.get_all(header).iter();
                let name = names.next().and_then(|name| name.to_str().ok()).unwrap_or_default().trim();
                // Two headers: one may be the visitor's own.
                if name.is_empty() || names.next().is_some() {
                    return Err(Refusal::Unnamed(header.to_string()));
                }
                let is_operator = operators.iter().any(|operator| operator == name);
                let role = if is_operator { Role::Operator } else { Role::ReadOnly };
                Ok(Principal { name: name.to_owned(), role })
            }
        }
    }

    /// Decides about a token that was typed into the form.
    pub(crate) fn log_in(
        &self,
        peer: Option<IpAddr>,
        token: &str,
        now: Instant,
    ) -> Result<Principal, Refusal> {
        let Mode::Tokens(users) = &self.access.0 else { return Err(Refusal::Anonymous) };
        self.attempt(peer, now, || by_token(users, token))
    }

    fn attempt(
        &self,
        peer: Option<IpAddr>,
        now: Instant,
        check: impl FnOnce() -> Option<Principal>,
    ) -> Result<Principal, Refusal> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = failures.wait(peer, now) {
            return Err(Refusal::TooMany(wait));
        }
        check().ok_or_else(|| {
            failures.count(peer, now);
            Refusal::Wrong
        })
    }
}

fn loopback(asked: Asked<'_>, hosts: &[String]) -> Result<Principal, Refusal> {
    let peer = asked.peer.ok_or(Refusal::UnknownPeer)?;
    if !peer.to_canonical().is_loopback() {
        return Err(Refusal::Remote(peer));
    }
    if FORWARDED.iter().any(|name| asked.headers.contains_key(*name)) {
        return Err(Refusal::Forwarded);
    }
    // A page of another site can make its own name lead to this machine; the name tells.
    if !is_this_machine(asked.host) && !hosts.iter().any(|host| host == asked.host) {
        return Err(Refusal::Host(asked.host.to_owned()));
    }
    Ok(Principal { name: "local".to_owned(), role: Role::Operator })
}

/// Returns true for names that always lead to this machine, whatever port stands behind them.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost"
        || name.ends_with(".localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn principal(user: &User) -> Principal {
    Principal { name: user.name.clone(), role: user.role }
}

/// Compares with every user, so that the time does not tell which one it was.
fn by_token(users: &[User], token: &str) -> Option<Principal> {
    users.iter().fold(None, |found, user| if user.secret.is(token) { Some(principal(user)) } else { found })
}

fn by_password(users: &[User], name: &str, password: &str) -> Option<Principal> {
    users.iter().fold(None, |found, user| {
        let fits = user.secret.is(password) & (user.name == name);
        if fits { Some(principal(user)) } else { found }
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    credentials(headers, "bearer")
}

fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let encoded = credentials(headers, "basic")?;
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn credentials<'h>(headers: &'h HeaderMap, scheme: &str) -> Option<&'h str> {
    let (given, rest) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then_some(rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        for host in ["localhost", "localhost:9464", "127.0.0.1:1", "[::1]:80", "a.localhost", "LOCALHOST"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "10.0.0.1:80", "[::2]"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_weak_or_double_user_is_refused_without_its_secret() {
        let error = Access::tokens([User::operator("a", "hunter2")]).unwrap_err().to_string();
        assert!(error.contains("7 bytes") && !error.contains("hunter2"), "{error}");
        let twice = [User::operator("a", "x".repeat(12)), User::read_only("a", "y".repeat(12))];
        assert!(Access::basic(twice).is_err());
        assert!(Access::tokens([]).is_err());
        assert!(Access::proxy("x user", ["10.0.0.1"], ["a"]).is_err());
        assert!(Access::proxy("x-user", [""; 0], ["a"]).is_err());
        assert!(!format!("{:?}", User::operator("a", "s3cret-s3cret")).contains("s3cret"));
    }
}
