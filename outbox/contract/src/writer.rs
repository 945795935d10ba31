//! The outbox: the object to which a service appends its events.

use std::sync::Arc;

use serde::Serialize;

use crate::attributes;
use crate::codec::{Codec, Json};
use crate::error::AppendError;
use crate::event::DomainEvent;
use crate::id::MessageId;
use crate::message::{Message, MessageError, Outgoing};
use crate::name::{NameError, Route, Topic};
use crate::options::AppendOptions;
use crate::{Transactional, Transport};

/// Turns events into messages and appends them to a store, in the user's own transaction. A value,
/// not a global: a process may have many.
///
/// Cheap to clone.
///
/// The transaction must belong to the store's own database. The compiler checks only its kind. A
/// transaction of *another* database of that kind compiles as well. It then writes to that
/// database, where no relay of this store looks, or fails because of missing tables.
///
/// ```ignore
/// let outbox = Outbox::new(store);
/// let mut tx = pool.begin().await?; // SQLite: pool.begin_with("begin immediate")
/// sqlx::query("insert into orders …").execute(&mut *tx).await?;
/// outbox.append(&mut tx, &OrderPlaced { order_id, total_cents }).await?;
/// tx.commit().await?;
/// ```
#[derive(Debug)]
pub struct Outbox<S, C = Json> {
    store: Arc<S>,
    codec: Arc<C>,
    routes: Arc<[(Topic, Route)]>,
    limits: Limits,
}

#[derive(Clone, Default)]
struct Limits(Option<Arc<dyn Transport>>);

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map(|transport| transport.name()).fmt(f)
    }
}

impl<S, C> Clone for Outbox<S, C> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            codec: Arc::clone(&self.codec),
            routes: Arc::clone(&self.routes),
            limits: self.limits.clone(),
        }
    }
}

impl<S: Transactional> Outbox<S> {
    /// Creates an outbox in this store that writes JSON and sends everything by the route
    /// `default`.
    ///
    /// A store is cheap to clone: give this outbox one clone, and the relay another.
    pub fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            codec: Arc::new(Json),
            routes: Arc::new([]),
            limits: Limits::default(),
        }
    }
}

impl<S: Transactional, C: Codec> Outbox<S, C> {
    /// Sets another codec for events.
    #[must_use]
    pub fn with_codec<D: Codec>(self, codec: D) -> Outbox<S, D> {
        Outbox { store: self.store, codec: Arc::new(codec), routes: self.routes, limits: self.limits }
    }

    /// Sends a topic by a route of its own **instead of** `default`. Two calls for one topic with
    /// two routes send it by both, as two rows. To add a route beside `default`, name `default`
    /// too.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// # use outbox::{NameError, Outbox, Transactional};
    /// # fn routed<S: Transactional>(store: S) -> Result<Outbox<S>, NameError> {
    /// // Orders go to both brokers, audits to the second one alone.
    /// let outbox = Outbox::new(store)
    ///     .with_route("orders", "default")?
    ///     .with_route("orders", "archive")?
    ///     .with_route("audits", "archive")?;
    /// # Ok(outbox)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Describes an invalid topic or route.
    pub fn with_route(mut self, topic: impl AsRef<str>, route: impl AsRef<str>) -> Result<Self, NameError> {
        let pair = (Topic::new(topic)?, Route::new(route)?);
        if !self.routes.contains(&pair) {
            self.routes = self.routes.iter().cloned().chain([pair]).collect();
        }
        Ok(self)
    }

    /// Rejects at append what this transport can never carry (a payload over the broker's limit),
    /// instead of making it a dead letter later.
    #[must_use]
    pub fn with_limits_of(mut self, transport: impl Transport) -> Self {
        self.limits = Limits(Some(Arc::new(transport)));
        self
    }

    /// Returns the same codec, routes and limits on another store, or on another handle of the same
    /// store.
    #[must_use]
    pub fn with_store<T: Transactional>(self, store: T) -> Outbox<T, C> {
        Outbox { store: Arc::new(store), codec: self.codec, routes: self.routes, limits: self.limits }
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the codec for events.
    #[must_use]
    pub fn codec(&self) -> &C {
        &self.codec
    }

    /// Appends an event in a transaction. It is sent if and only if that commits.
    ///
    /// # Errors
    ///
    /// See [`AppendError`]: a conflict has ended the transaction; an event that is not a valid
    /// message leaves the transaction unchanged. After any other error, roll back.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped half-way, by a timeout for example, the state of the transaction is
    /// unknown: roll it back.
    pub async fn append<E>(&self, tx: &mut S::Tx<'_>, event: &E) -> Result<MessageId, AppendError>
    where
        E: DomainEvent + Serialize + Sync + ?Sized,
    {
        self.append_message(tx, self.encode(event)?).await
    }

    /// Appends several events in a transaction, in this order, in one round trip where the driver
    /// can.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append); if one event is not a valid message, none was written.
    pub async fn append_all<'e, E, I>(
        &self,
        tx: &mut S::Tx<'_>,
        events: I,
    ) -> Result<Vec<MessageId>, AppendError>
    where
        E: DomainEvent + Serialize + Sync + 'e,
        I: IntoIterator<Item = &'e E>,
    {
        let messages = events.into_iter().map(|event| self.encode(event)).collect::<Result<Vec<_>, _>>()?;
        self.append_messages(tx, messages).await
    }

    /// Appends an event with headers, or to be sent at a later time.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use std::time::Duration;
    /// use outbox::AppendOptions;
    /// # use outbox::{AppendError, DomainEvent, Outbox, Transactional};
    /// # async fn append<S: Transactional, E: DomainEvent + serde::Serialize + Sync>(
    /// #     outbox: &Outbox<S>,
    /// #     mut tx: S::Tx<'_>,
    /// #     reminder: E,
    /// # ) -> Result<(), AppendError> {
    /// let tomorrow = AppendOptions::new().header("tenant", "north").after(Duration::from_secs(86_400));
    /// outbox.append_with(&mut tx, &reminder, tomorrow).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub async fn append_with<E>(
        &self,
        tx: &mut S::Tx<'_>,
        event: &E,
        options: AppendOptions,
    ) -> Result<MessageId, AppendError>
    where
        E: DomainEvent + Serialize + Sync + ?Sized,
    {
        let outgoing = options.apply(self.encode(event)?)?;
        let id = outgoing.message.id;
        self.store.append(tx, &self.check_and_route(outgoing)?).await?;
        Ok(id)
    }

    /// Appends a message built by hand.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use outbox::Message;
    /// # use outbox::{Outbox, Transactional};
    /// # async fn append<S: Transactional>(
    /// #     outbox: &Outbox<S>,
    /// #     mut tx: S::Tx<'_>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let message = Message::new("orders", "order.placed")?
    ///     .with_key("order-1")?
    ///     .with_payload(r#"{"cents":4200}"#);
    /// outbox.append_message(&mut tx, message).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub async fn append_message(
        &self,
        tx: &mut S::Tx<'_>,
        message: Message,
    ) -> Result<MessageId, AppendError> {
        let id = message.id;
        self.store.append(tx, &self.check_and_route(message.into())?).await?;
        Ok(id)
    }

    /// Appends messages built by hand, in this order. An [`Outgoing`] has a due time as well; its
    /// route is that of its topic.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append).
    pub async fn append_messages<M: Into<Outgoing>>(
        &self,
        tx: &mut S::Tx<'_>,
        messages: Vec<M>,
    ) -> Result<Vec<MessageId>, AppendError> {
        let (mut ids, mut routed) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        for message in messages {
            let outgoing = message.into();
            ids.push(outgoing.message.id);
            routed.extend(self.check_and_route(outgoing)?);
        }
        self.store.append(tx, &routed).await?;
        Ok(ids)
    }

    /// Turns an event into a message, without appending it. The message carries the
    /// [`trace`](mod@crate::backend::trace) of the current span.
    ///
    /// # Errors
    ///
    /// Describes the invalid part of the event: a key that is empty or too long, a payload that
    /// does not encode, a missing topic.
    pub fn encode<E>(&self, event: &E) -> Result<Message, MessageError>
    where
        E: DomainEvent + Serialize + ?Sized,
    {
        Message::encode_with(&*self.codec, event)
    }

    /// Checks a message, and returns one for each route of its topic.
    fn check_and_route(&self, mut outgoing: Outgoing) -> Result<Vec<Outgoing>, MessageError> {
        attributes::forget_origin(&mut outgoing.message.headers);
        let message = &outgoing.message;
        message.validate()?;
        if let Some(transport) = &self.limits.0 {
            transport.validate(message).map_err(MessageError::Rejected)?;
        }
        let routes = self.routes.iter().filter(|(topic, _)| *topic == message.topic);
        let routed: Vec<Outgoing> = routes.map(|(_, route)| outgoing.clone().by(route.clone())).collect();
        Ok(if routed.is_empty() { vec![outgoing.by(Route::default())] } else { routed })
    }
}
