//! Examination of brokers by `doctor`: of each one the topics that have messages in the store, and
//! those that settings name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outbox::admin::{Diagnosis, DiagnosisKind, TopicFigures};
use outbox::{Route, Topic, Transport};

use crate::app::{App, count};
use crate::commands::check::{PATIENCE, reach};
use crate::exit::Failed;
use crate::findings::Finding;
use crate::open::{self, Database};
use crate::settings::Settings;

/// Maximum number of topics of a broker.
const MAX_TOPICS: usize = TopicFigures::MAX;

/// Result of an examination.
#[derive(Debug, Default)]
pub(crate) struct Examined {
    pub(crate) findings: Vec<Finding>,
    /// Parts that could not be examined.
    pub(crate) unchecked: Vec<Finding>,
}

/// Examines the broker of each route. Without a store only the topics of the settings are known.
pub(crate) async fn brokers(app: &App, store: Option<&dyn Database>) -> Result<Examined, Failed> {
    let mut examined = Examined::default();
    for (name, url) in routes(app) {
        let transport = match open::transport(&app.settings, &url, None) {
            Ok(transport) => transport,
            Err(error) => {
                examined.unreachable(&name, &error);
                continue;
            }
        };
        let mut topics = named_by_settings(&app.settings, open::scheme(&url));
        if let Some((store, route)) = store.zip(Route::new(name.as_str()).ok()) {
            for figures in store.topics(&route).await? {
                examined.is_cut(&route, &figures);
                topics.insert(figures.topic);
            }
        }
        examined.examine(&name, &transport, topics).await;
    }
    Ok(examined)
}

/// Returns the routes that settings name a broker for, each with its URL.
fn routes(app: &App) -> BTreeMap<String, String> {
    let mut routes = app.settings.routes.clone();
    if let Some(url) = &app.settings.transport {
        routes.insert(Route::default().to_string(), url.clone());
    }
    routes
}

/// Returns topics that settings name for a broker of this scheme: those of queues to declare, and
/// of rules about one topic, unless they may belong to another route.
fn named_by_settings(settings: &Settings, scheme: &str) -> BTreeSet<Topic> {
    let declared = settings.rabbitmq.declare.keys().filter(|_| scheme.starts_with("amqp"));
    let rules = settings.relay.retry.rules.iter().filter(|_| settings.routes.is_empty());
    let of_rules = rules.filter_map(|rule| rule.topic.as_ref()).filter(|name| !name.ends_with('*'));
    declared.chain(of_rules).filter_map(|name| Topic::new(name.as_str()).ok()).collect()
}

impl Examined {
    /// Notes that the store shows not all topics of a route.
    fn is_cut(&mut self, route: &Route, figures: &TopicFigures) {
        let text = format!(
            "route {route}: more waits in the store than is looked at; the broker was not examined for topics behind it"
        );
        if figures.is_at_least && !self.unchecked.iter().any(|it| it.text == text) {
            let remedy = "repeat it when less waits; `outbox topics` shows the topics that were found";
            self.unchecked.push(Finding::new(DiagnosisKind::Unseen.as_str(), text, remedy));
        }
    }

    /// Checks the broker of a route, and examines it for these topics.
    async fn examine(&mut self, name: &str, transport: &Arc<dyn Transport>, topics: BTreeSet<Topic>) {
        if let Err(error) = reach(&**transport).await {
            self.unreachable(name, &error);
            return;
        }
        let topics = self.bounded(name, topics);
        let examined = tokio::time::timeout(PATIENCE, transport.diagnose(&topics)).await;
        let why = match examined {
            Ok(Ok(found)) => return self.add(name, found),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        self.unchecked.push(Finding::new(
            DiagnosisKind::Unseen.as_str(),
            format!("route {name}: the broker was not examined: {why}"),
            "repeat it; see the broker's log",
        ));
    }

    /// Returns as many topics as are examined, and notes the others.
    fn bounded(&mut self, name: &str, topics: BTreeSet<Topic>) -> Vec<Topic> {
        let mut topics: Vec<Topic> = topics.into_iter().collect();
        if topics.len() > MAX_TOPICS {
            let text = format!(
                "route {name}: {} of {}, the last by name: more than are examined at once",
                count((topics.len() - MAX_TOPICS) as u64, "topic"),
                topics.len()
            );
            let remedy = "see `outbox topics`, and look at them with the broker's own tools";
            self.unchecked.push(Finding::new(DiagnosisKind::Unseen.as_str(), text, remedy));
            topics.truncate(MAX_TOPICS);
        }
        topics
    }

    fn add(&mut self, name: &str, found: Vec<Diagnosis>) {
        let of_default = *name == *Route::default().as_str();
        for Diagnosis { kind, text, remedy, .. } in found {
            let route = if of_default { String::new() } else { format!(" (route {name})") };
            let finding = Finding::new(kind.as_str(), format!("broker{route}: {text}"), remedy);
            let is_unseen = kind == DiagnosisKind::Unseen;
            let list = if is_unseen { &mut self.unchecked } else { &mut self.findings };
            list.push(finding);
        }
    }

    fn unreachable(&mut self, name: &str, error: &Failed) {
        let (what, setting) = if *name == *Route::default().as_str() {
            ("transport".to_owned(), "--transport".to_owned())
        } else {
            (format!("transport of route {name}"), format!("routes.{name}"))
        };
        let remedy = format!(
            "correct {setting}, start the broker, or create what is missing; messages wait in the store until then"
        );
        self.findings.push(Finding::new("transport", format!("{what}: {error}"), remedy));
    }
}

#[cfg(test)]
mod tests {
    use outbox::retry::RetryRule;

    use super::*;

    #[test]
    fn topics_that_are_left_out_are_counted() {
        let topics = |number: usize| -> BTreeSet<Topic> {
            (0..number).map(|at| Topic::new(format!("t{at:04}")).unwrap()).collect()
        };
        let mut examined = Examined::default();
        assert_eq!(examined.bounded("default", topics(MAX_TOPICS)).len(), MAX_TOPICS);
        assert!(examined.unchecked.is_empty());
        let kept = examined.bounded("default", topics(MAX_TOPICS + 1));
        assert_eq!((kept.len(), kept.last().unwrap().as_str()), (MAX_TOPICS, "t0999"));
        let text = &examined.unchecked[0].text;
        assert!(text.starts_with("route default: 1 topic of 1001, the last by name"), "{text}");
    }

    #[test]
    fn a_topic_that_settings_name_is_looked_for_where_it_belongs() {
        let mut settings = Settings::default();
        settings.rabbitmq.declare.insert("mails".to_owned(), Vec::new());
        for topic in ["orders", "metrics.*"] {
            settings
                .relay
                .retry
                .rules
                .push(RetryRule { topic: Some(topic.to_owned()), ..RetryRule::default() });
        }
        let named = |settings: &Settings, scheme| -> Vec<String> {
            named_by_settings(settings, scheme).iter().map(Topic::to_string).collect()
        };
        assert_eq!(named(&settings, "kafka"), ["orders"]);
        assert_eq!(named(&settings, "amqps"), ["mails", "orders"]);
        settings.routes.insert("mails".to_owned(), "amqp://broker".to_owned());
        assert_eq!(named(&settings, "kafka"), [""; 0], "it may be one of the other route");
        assert_eq!(named(&settings, "amqp"), ["mails"]);
    }

    #[test]
    fn a_backlog_that_hides_topics_is_told_once() {
        let mut examined = Examined::default();
        let mut figures = TopicFigures::new(Topic::new("orders").unwrap());
        examined.is_cut(&Route::default(), &figures);
        assert!(examined.unchecked.is_empty());
        figures.is_at_least = true;
        examined.is_cut(&Route::default(), &figures);
        examined.is_cut(&Route::default(), &figures);
        assert_eq!(examined.unchecked.len(), 1);
    }
}
