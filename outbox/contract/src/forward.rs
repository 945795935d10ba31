//! Stores and transports behind `Arc`: `Arc<T>` forwards every method.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::stream::BoxStream;

use crate::admin::{Admin, DeadLetter, Edit, FailingKey, Filter, Past};
use crate::backlog::Backlog;
use crate::bucket::BucketSet;
use crate::clock::Timestamp;
use crate::error::{AppendError, StoreError, TransportError};
use crate::failure::Rejection;
use crate::fetch::{Due, DueRequest, FetchRequest, Fetched, Ordering, RowId, Stored, Writers};
use crate::id::{MessageId, RelayId};
use crate::lease::{Lease, LeaseRequest, Leased, LowWater};
use crate::maintain::Maintained;
use crate::message::{Message, Outgoing};
use crate::name::{Consumer, KeyId, Route, Topic};
use crate::outcome::Outcomes;
use crate::store::Store;
use crate::stripe::StripeMark;
use crate::subscription::{Deliveries, Subscription};
use crate::transactional::{Blame, Committed, Dedup, Transactional};
use crate::transition::{KeyTransition, Transitioned};
use crate::transport::{PublishBatch, Transport};
use crate::unserved::Unserved;
use crate::wakeup::{Wakeup, WakeupSignal};

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Admin + ?Sized> Admin for Arc<T> {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        (**self).failing_keys(filter).await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        (**self).parked(filter).await
    }

    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        (**self).dead_letters(filter).await
    }

    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        (**self).history(filter).await
    }

    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        (**self).hold(route, key).await
    }

    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        (**self).release(route, key).await
    }

    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        (**self).skip(route, key).await
    }

    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        (**self).discard(route, key).await
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        (**self).requeue(filter).await
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        (**self).requeue_edited(filter, edit).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        (**self).purge(filter).await
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        (**self).replay(filter).await
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        (**self).pause(route, topic).await
    }

    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        (**self).resume(route, topic).await
    }

    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        (**self).scheduled(filter).await
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        (**self).cancel_scheduled(ids).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Store + ?Sized> Store for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn ordering(&self) -> Ordering {
        (**self).ordering()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        (**self).migrate().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        (**self).check().await
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        (**self).lease(request).await
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        (**self).give_back(relay, route, leases, low_water, leaving).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        (**self).fetch(request).await
    }

    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        (**self).fetch_below(request).await
    }

    async fn writers(&self) -> Result<Writers, StoreError> {
        (**self).writers().await
    }

    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        (**self).stripes(route, buckets).await
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        (**self).due(request).await
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        (**self).settle(route, delivered).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        (**self).transition(transitions).await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        (**self).elect(role, relay, lasts).await
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        (**self).maintain(limit).await
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        (**self).backlog(route).await
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        (**self).unserved(after).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        (**self).wakeups()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Transactional> Transactional for Arc<T> {
    type Tx<'t> = T::Tx<'t>;

    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        (**self).begin().await
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Committed {
        (**self).commit(tx).await
    }

    async fn commit_and_begin(&self, tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        (**self).commit_and_begin(tx).await
    }

    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError> {
        (**self).rollback(tx).await
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        (**self).append(tx, messages).await
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        (**self).fence(tx, route, stored).await
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        (**self).deduplicate(tx, consumer, messages).await
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        (**self).is_handled(consumer, id).await
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        (**self).blame(error)
    }

    fn is_conflict(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        (**self).is_conflict(error)
    }

    fn max_idle(&self) -> Option<Duration> {
        (**self).max_idle()
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        (**self).wakeup_signal()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<T: Transport + ?Sized> Transport for Arc<T> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    async fn check(&self) -> Result<(), TransportError> {
        (**self).check().await
    }

    fn validate(&self, message: &Message) -> Result<(), Rejection> {
        (**self).validate(message)
    }

    async fn publish(&self, chunk: PublishBatch, outcomes: &Outcomes) {
        (**self).publish(chunk, outcomes).await;
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        (**self).subscribe(subscription).await
    }

    async fn close(&self) {
        (**self).close().await;
    }
}
