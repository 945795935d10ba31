//! Security of connections: TLS, certificates, passwords.
//!
//! Promises: nothing secret is printed; what librdkafka was not built with is refused before
//! anything is connected, with the feature that adds it.

use std::collections::BTreeMap;
use std::fmt;

/// SASL mechanism, by which a client proves its password to the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mechanism {
    /// The password is sent as it is: without TLS, it can be read on the network.
    Plain,
    /// SCRAM with SHA-256: the password is not sent. Needs the feature `tls`, also without TLS.
    ScramSha256,
    /// SCRAM with SHA-512: the password is not sent. Needs the feature `tls`, also without TLS.
    ScramSha512,
}

impl Mechanism {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Optional features of librdkafka.
struct Part {
    /// As librdkafka lists it.
    name: &'static str,
    what: &'static str,
    /// True if a property of this name and value, in capital letters, asks for it.
    wanted: fn(&str, &str) -> bool,
}

const PARTS: [Part; 3] = [
    Part { name: "ssl", what: "TLS", wanted: wants_tls },
    Part {
        name: "sasl_scram",
        what: "SCRAM",
        wanted: |name, value| is_mechanism(name) && value.starts_with("SCRAM-"),
    },
    Part {
        name: "sasl_oauthbearer",
        what: "OAUTHBEARER",
        wanted: |name, value| is_mechanism(name) && value == "OAUTHBEARER",
    },
];

fn wants_tls(name: &str, value: &str) -> bool {
    name.starts_with("ssl.") || (name == "security.protocol" && value.contains("SSL"))
}

fn is_mechanism(name: &str) -> bool {
    same(name) == "sasl.mechanism"
}

/// One name for properties that say the same.
fn same(property: &str) -> &str {
    match property {
        "sasl.mechanisms" => "sasl.mechanism",
        "ssl.ca.location" => "ssl.ca.pem",
        "ssl.certificate.location" => "ssl.certificate.pem",
        "ssl.key.location" => "ssl.key.pem",
        property => property,
    }
}

/// Settings of TLS and passwords.
#[derive(Clone, Default)]
pub(crate) struct Security {
    tls: bool,
    authorities: Option<String>,
    /// The certificate and its key.
    identity: Option<(String, String)>,
    /// Mechanism, user, password.
    credentials: Option<(Mechanism, String, String)>,
}

impl Security {
    pub(crate) const fn tls(&mut self) {
        self.tls = true;
    }

    /// Given authorities or an identity, nothing may go out without TLS.
    pub(crate) fn authorities(&mut self, pem: String) {
        self.tls = true;
        self.authorities = Some(pem);
    }

    pub(crate) fn identity(&mut self, certificate: String, key: String) {
        self.tls = true;
        self.identity = Some((certificate, key));
    }

    pub(crate) fn credentials(&mut self, mechanism: Mechanism, user: String, password: String) {
        self.credentials = Some((mechanism, user, password));
    }

    /// Returns the properties for the client. Nothing where nothing was said: then properties may.
    pub(crate) fn properties(&self) -> Vec<(&'static str, &str)> {
        let mut all = Vec::new();
        match (self.tls, self.credentials.is_some()) {
            (false, false) => {}
            (true, false) => all.push(("security.protocol", "SSL")),
            (false, true) => all.push(("security.protocol", "SASL_PLAINTEXT")),
            (true, true) => all.push(("security.protocol", "SASL_SSL")),
        }
        if let Some(authorities) = &self.authorities {
            all.push(("ssl.ca.pem", authorities));
        }
        if let Some((certificate, key)) = &self.identity {
            all.extend([("ssl.certificate.pem", certificate.as_str()), ("ssl.key.pem", key)]);
        }
        if let Some((mechanism, user, password)) = &self.credentials {
            all.extend([
                ("sasl.mechanism", mechanism.name()),
                ("sasl.username", user),
                ("sasl.password", password),
            ]);
        }
        all
    }

    /// Lists what is wrong with it beside these properties, for a librdkafka that was built with
    /// what this list of names says.
    pub(crate) fn problems(&self, properties: &BTreeMap<String, String>, built_with: &str) -> Vec<String> {
        let ours = self.properties();
        let is_ours = |name: &String| ours.iter().any(|(of_ours, _)| same(of_ours) == same(name));
        let mut problems: Vec<String> = properties
            .keys()
            .filter(|name| is_ours(name))
            .map(|name| {
                format!(
                    "the property {name} is also set by tls, authorities, identity or credentials; remove one of them"
                )
            })
            .collect();
        let given = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        problems.extend(given.chain(ours.iter().copied()).filter_map(|(name, value)| {
            let value = value.to_ascii_uppercase();
            let is_built = |part: &Part| built_with.split(',').any(|built| built.trim() == part.name);
            let part = PARTS.iter().find(|part| (part.wanted)(name, &value) && !is_built(part))?;
            let what = part.what;
            Some(format!(
                "{name} needs {what}, which librdkafka was built without; enable the feature `tls` of outbox-transport-kafka \
                 (`kafka-tls` of outbox)"
            ))
        }));
        problems
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The user's name is no secret; keys and passwords are.
        f.debug_struct("Security")
            .field("tls", &self.tls)
            .field("authorities", &self.authorities.is_some())
            .field("identity", &self.identity.is_some())
            .field("credentials", &self.credentials.as_ref().map(|(mechanism, user, _)| (mechanism, user)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Features that librdkafka lists with and without OpenSSL.
    const WITH: &str = "gzip,snappy,ssl,sasl,regex,lz4,sasl_plain,sasl_scram,plugins,sasl_oauthbearer";
    const WITHOUT: &str = "gzip,snappy,sasl,regex,lz4,sasl_plain,plugins";

    fn properties(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn security(say: impl FnOnce(&mut Security)) -> Security {
        let mut security = Security::default();
        say(&mut security);
        security
    }

    fn scram(security: &mut Security) {
        security.credentials(Mechanism::ScramSha512, "shop".to_owned(), "hush".to_owned());
    }

    #[test]
    fn what_librdkafka_was_built_without_is_refused_with_the_feature_that_adds_it() {
        let none = properties(&[]);
        let by_methods = [
            security(Security::tls),
            security(|it| it.authorities("pem".to_owned())),
            security(|it| it.identity("pem".to_owned(), "hush".to_owned())),
            security(scram),
        ];
        for security in by_methods {
            let problems = security.problems(&none, WITHOUT).join("; ");
            assert!(problems.contains("feature `tls`") && !problems.contains("hush"), "{problems}");
            assert_eq!(security.problems(&none, WITH), [""; 0]);
        }
        let by_properties = [
            ("security.protocol", "sasl_ssl"),
            ("ssl.ca.location", "/etc/ssl"),
            ("sasl.mechanisms", "SCRAM-SHA-256"),
            ("sasl.mechanism", "OAUTHBEARER"),
        ];
        for property in by_properties {
            let property = properties(&[property]);
            let problems = Security::default().problems(&property, WITHOUT);
            assert!(problems.len() == 1 && problems[0].contains("feature `tls`"), "{problems:?}");
            assert_eq!(Security::default().problems(&property, WITH), [""; 0]);
        }
        let plain = security(|it| it.credentials(Mechanism::Plain, "shop".to_owned(), "hush".to_owned()));
        assert_eq!(plain.problems(&none, WITHOUT), [""; 0], "PLAIN needs nothing");
    }

    #[test]
    fn what_a_method_says_is_not_said_by_a_property_too() {
        let trusting = security(|it| it.authorities("pem".to_owned()));
        for name in ["security.protocol", "ssl.ca.location", "ssl.ca.pem"] {
            let problems = trusting.problems(&properties(&[(name, "x")]), WITH);
            assert!(problems.len() == 1 && problems[0].contains(name), "{problems:?}");
        }
        let known = security(scram);
        assert_eq!(known.problems(&properties(&[("sasl.mechanisms", "PLAIN")]), WITH).len(), 1);
        assert_eq!(trusting.problems(&properties(&[("ssl.key.password", "hush")]), WITH), [""; 0]);
    }

    #[test]
    fn authorities_and_an_identity_are_never_used_without_tls() {
        let protocol =
            |security: Security| security.properties().first().map(|(name, value)| format!("{name}={value}"));
        assert_eq!(protocol(Security::default()), None);
        assert_eq!(protocol(security(|it| it.authorities(String::new()))).unwrap(), "security.protocol=SSL");
        assert_eq!(
            protocol(security(|it| it.identity(String::new(), String::new()))).unwrap(),
            "security.protocol=SSL"
        );
        assert_eq!(protocol(security(scram)).unwrap(), "security.protocol=SASL_PLAINTEXT");
        let both = security(|it| {
            scram(it);
            it.tls();
        });
        assert_eq!(protocol(both).unwrap(), "security.protocol=SASL_SSL");
    }
}
