//! The registry: which handler a message goes to, and what happens to one that no handler wants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox_contract::{Codec, DomainEvent, Failure, Json, Message, Topic, Transactional};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::config::{HandlerOptions, UnknownType};
use super::foreign::IGNORED;
use super::handler::MessageHandler;
use super::handler_context::HandlerContext;
use super::undecodable::is_record;
use super::upcast::{Upcasters, unreadable};
use crate::mediator::HandlerError;

/// The type of what came from a broker and was no message: kept with its bytes, so that an operator
/// can look at it.
pub(crate) const UNDECODABLE: &str = "outbox.undecodable";
/// The header that says why.
pub(crate) const UNDECODABLE_REASON: &str = "outbox-undecodable";

/// A handler of any type, ready to be called.
pub(crate) trait Call<S: Transactional, C: Codec>: Send + Sync {
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a, S, (), C>,
        upcasters: &'a Upcasters<C>,
    ) -> BoxFuture<'a, Result<(), HandlerError>>;
}

/// A handler of events, with the state that its context lends.
struct Typed<E, H, A> {
    handler: H,
    state: Arc<A>,
    event: PhantomData<fn() -> E>,
}

impl<S, E, H, A, C> Call<S, C> for Typed<E, H, A>
where
    S: Transactional,
    E: DomainEvent + DeserializeOwned + Send + 'static,
    H: for<'a> MessageHandler<'a, E, S, A, C>,
    A: Send + Sync + 'static,
    C: Codec,
{
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a, S, (), C>,
        upcasters: &'a Upcasters<C>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let (message, codec) = (context.message(), context.outbox.codec());
            let known = E::TYPES.iter().find(|known| *known.name == *message.event_type);
            let known = known.map_or(message.schema_version, |known| known.version);
            let payload = upcasters.raise(
                codec,
                &message.event_type,
                message.schema_version,
                known,
                &message.payload,
            )?;
            let event = codec.decode(&payload).map_err(|error| unreadable(&error))?;
            let mut context = context.with_state(&*self.state);
            self.handler.clone().handle(event, &mut context).await
        })
    }
}

/// A handler of messages as they are.
struct Raw<H, A> {
    handler: H,
    state: Arc<A>,
}

impl<S, H, A, C> Call<S, C> for Raw<H, A>
where
    S: Transactional,
    H: for<'a> MessageHandler<'a, Message, S, A, C>,
    A: Send + Sync + 'static,
    C: Codec,
{
    fn call<'a>(
        &'a self,
        context: HandlerContext<'a, S, (), C>,
        _upcasters: &'a Upcasters<C>,
    ) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let message = context.message().clone();
            let mut context = context.with_state(&*self.state);
            self.handler.clone().handle(message, &mut context).await
        })
    }
}

/// A handler with its bounds.
pub(crate) struct Registered<S: Transactional, C: Codec> {
    pub(crate) call: Arc<dyn Call<S, C>>,
    pub(crate) options: HandlerOptions,
    /// As many as may run at once, in memory and from the store together.
    pub(crate) permits: Arc<Semaphore>,
}

/// Action for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// This handler handles it.
    Handle(usize),
    /// No handler wants it.
    Ignore,
    /// It becomes a dead letter.
    Reject(Failure),
    /// It waits: a program that is deployed later may know it.
    Wait(Failure),
}

/// The handlers of an inbox.
pub(crate) struct Handlers<S: Transactional, C: Codec = Json> {
    list: Vec<Registered<S, C>>,
    by_type: BTreeMap<(Topic, String), usize>,
    any: Option<usize>,
    pub(crate) upcasters: Upcasters<C>,
    pub(crate) unknown: UnknownType,
    pub(crate) topics: BTreeSet<Topic>,
    problems: Vec<String>,
}

impl<S: Transactional, C: Codec> Handlers<S, C> {
    pub(crate) fn new() -> Self {
        Self {
            list: Vec::new(),
            by_type: BTreeMap::new(),
            any: None,
            upcasters: Upcasters::default(),
            unknown: UnknownType::default(),
            topics: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    pub(crate) fn typed<E, H, A>(&mut self, options: HandlerOptions, handler: H, state: Arc<A>)
    where
        E: DomainEvent + DeserializeOwned + Send + 'static,
        H: for<'a> MessageHandler<'a, E, S, A, C>,
        A: Send + Sync + 'static,
    {
        let at = self.register(options, Arc::new(Typed { handler, state, event: PhantomData }));
        for known in E::TYPES {
            match known.topic {
                Some(topic) => self.route(topic, known.name, at),
                None => self.problems.push(format!(
                    "{} is local and is never sent; give its type a topic, or handle it in a unit of work",
                    known.name
                )),
            }
        }
    }

    pub(crate) fn raw<H, A>(
        &mut self,
        options: HandlerOptions,
        topic: &str,
        event_type: &str,
        handler: H,
        state: Arc<A>,
    ) where
        H: for<'a> MessageHandler<'a, Message, S, A, C>,
        A: Send + Sync + 'static,
    {
        let at = self.register(options, Arc::new(Raw { handler, state }));
        self.route(topic, event_type, at);
    }

    pub(crate) fn any<H, A>(&mut self, options: HandlerOptions, handler: H, state: Arc<A>)
    where
        H: for<'a> MessageHandler<'a, Message, S, A, C>,
        A: Send + Sync + 'static,
    {
        let at = self.register(options, Arc::new(Raw { handler, state }));
        if self.any.replace(at).is_some() {
            self.problems.push("two handlers are registered for any message; remove one".to_owned());
        }
    }

    pub(crate) fn topic(&mut self, name: &str) {
        match Topic::new(name) {
            Ok(topic) => {
                self.topics.insert(topic);
            }
            Err(error) => self.problems.push(error.to_string()),
        }
    }

    pub(crate) fn problem(&mut self, problem: String) {
        self.problems.push(problem);
    }

    /// None yet, and what was said of topics and types: for another codec, which handlers and
    /// upcasters that are there already know nothing of.
    pub(crate) fn with_codec<D: Codec>(self) -> Handlers<S, D> {
        let mut problems = self.problems;
        if !self.list.is_empty() || !self.upcasters.is_empty() {
            problems.push(
                "`outbox` is called after a handler or an upcaster; call it first, since they use its codec"
                    .to_owned(),
            );
        }
        Handlers { unknown: self.unknown, topics: self.topics, problems, ..Handlers::new() }
    }

    /// Everything that is wrong, in words. `handles`: whether this inbox runs handlers, in
    /// transactions that may be idle for so long.
    pub(crate) fn problems(&self, handles: bool, max_idle: Option<Duration>) -> Vec<String> {
        let mut problems = self.problems.clone();
        if self.topics.is_empty() {
            problems.push("the inbox has no topics; register a typed handler, or name topics".to_owned());
        }
        if handles && self.list.is_empty() {
            problems.push("the inbox has no handler; register one with `on`".to_owned());
        }
        for registered in &self.list {
            problems.extend(registered.options.problems(max_idle.filter(|_| handles)));
        }
        let is_handled = |event_type: &str| self.by_type.keys().any(|(_, handled)| handled == event_type);
        let useless =
            self.upcasters.types().into_iter().filter(|event_type| handles && !is_handled(event_type));
        problems.extend(useless.map(|event_type| {
            format!(
                "an upcaster is registered for {event_type}, and no handler; correct the type, or remove it"
            )
        }));
        problems
    }

    fn register(&mut self, options: HandlerOptions, call: Arc<dyn Call<S, C>>) -> usize {
        let permits = options.concurrency.clamp(1, Semaphore::MAX_PERMITS);
        self.list.push(Registered { call, options, permits: Arc::new(Semaphore::new(permits)) });
        self.list.len() - 1
    }

    fn route(&mut self, topic: &str, event_type: &str, at: usize) {
        self.topic(topic);
        let Ok(topic) = Topic::new(topic) else { return };
        if self.by_type.insert((topic, event_type.to_owned()), at).is_some() {
            self.problems.push(format!("two handlers are registered for {event_type}; remove one"));
        }
    }

    pub(crate) fn action(&self, message: &Message) -> Action {
        if &*message.event_type == UNDECODABLE {
            // The substitute of a message of ours that could not be stored has no place, and is
            // never ignored.
            if self.unknown == UnknownType::Ignore && is_record(message) {
                return Action::Ignore;
            }
            let reason = message.headers.get(UNDECODABLE_REASON).unwrap_or("not a message of ours");
            return Action::Reject(Failure::new("undecodable", reason));
        }
        if &*message.event_type == IGNORED {
            return Action::Ignore;
        }
        let known = (message.topic.clone(), message.event_type.to_string());
        if let Some(at) = self.by_type.get(&known).copied().or(self.any) {
            return Action::Handle(at);
        }
        let failure = Failure::new(
            "unknown-type",
            format!("this program has no handler for type {} of topic {}", message.event_type, message.topic),
        );
        match self.unknown {
            UnknownType::DeadLetter => Action::Reject(failure),
            UnknownType::Ignore => Action::Ignore,
            UnknownType::Wait => Action::Wait(failure),
        }
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Registered<S, C>> {
        self.list.get(at)
    }

    /// Maximum number of concurrent calls of each handler.
    pub(crate) fn limits(&self) -> Vec<usize> {
        self.list.iter().map(|registered| registered.options.concurrency).collect()
    }

    /// The longest time that any handler may take.
    pub(crate) fn longest(&self) -> Duration {
        self.list.iter().map(|registered| registered.options.timeout).max().unwrap_or_default()
    }
}

impl<S: Transactional, C: Codec> fmt::Debug for Handlers<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("types", &self.by_type.keys())
            .field("any", &self.any.is_some())
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use outbox_store_memory::MemoryStore;

    use super::*;

    async fn nothing(
        _message: Message,
        _context: &mut HandlerContext<'_, MemoryStore>,
    ) -> Result<(), HandlerError> {
        Ok(())
    }

    fn message(event_type: &str) -> Message {
        Message::new("orders", event_type).unwrap()
    }

    #[test]
    fn an_unknown_type_goes_where_it_was_told_to() {
        let mut handlers = Handlers::<MemoryStore>::new();
        handlers.raw(HandlerOptions::default(), "orders", "placed", nothing, Arc::new(()));
        assert_eq!(handlers.action(&message("placed")), Action::Handle(0));
        assert!(matches!(handlers.action(&message("shipped")), Action::Wait(_)));
        handlers.unknown = UnknownType::DeadLetter;
        assert!(matches!(handlers.action(&message("shipped")), Action::Reject(_)));
        handlers.unknown = UnknownType::Ignore;
        assert_eq!(handlers.action(&message("shipped")), Action::Ignore);
        handlers.any(HandlerOptions::default(), nothing, Arc::new(()));
        assert_eq!(handlers.action(&message("shipped")), Action::Handle(1));
        assert_eq!(handlers.action(&message("placed")), Action::Handle(0));
    }

    #[test]
    fn what_is_no_message_is_rejected_whoever_wants_anything() {
        let mut handlers = Handlers::<MemoryStore>::new();
        handlers.any(HandlerOptions::default(), nothing, Arc::new(()));
        let junk = message(UNDECODABLE).with_header(UNDECODABLE_REASON, "no id").unwrap();
        assert_eq!(handlers.action(&junk), Action::Reject(Failure::new("undecodable", "no id")));
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let mut handlers = Handlers::<MemoryStore>::new();
        assert_eq!(handlers.problems(true, None).len(), 2);
        handlers.raw(HandlerOptions::default(), "orders", "placed", nothing, Arc::new(()));
        assert_eq!(handlers.problems(true, None), Vec::<String>::new());
        handlers.raw(HandlerOptions::default().concurrency(0), "orders", "placed", nothing, Arc::new(()));
        assert_eq!(handlers.problems(true, None).len(), 2);
    }

    #[test]
    fn no_call_may_take_longer_than_a_transaction_may_be_idle() {
        let seconds = Duration::from_secs;
        let mut handlers = Handlers::<MemoryStore>::new();
        handlers.raw(
            HandlerOptions::default().timeout(seconds(12)),
            "orders",
            "placed",
            nothing,
            Arc::new(()),
        );
        handlers.raw(HandlerOptions::default(), "orders", "shipped", nothing, Arc::new(()));
        assert_eq!(handlers.problems(true, None), Vec::<String>::new());
        assert_eq!(handlers.problems(true, Some(seconds(13))), Vec::<String>::new());
        assert_eq!(handlers.problems(false, Some(seconds(12))), Vec::<String>::new(), "no handler runs here");
        let problems = handlers.problems(true, Some(seconds(12)));
        assert!(problems.len() == 1 && problems[0].contains("transaction_idle_timeout"), "{problems:?}");
    }
}
