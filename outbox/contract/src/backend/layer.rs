//! Layers: stores around another one, such as `Arc`, or one that measures or fails.
//!
//! Each method of the traits is one line in the lists below. From it come the method of the layer,
//! which forwards, the method of the trait, which calls the layer's, and the method of `Arc`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::stream::BoxStream;

use super::{Archive, Frontier, KeyOperation, Listed, OpenWriters, Steered, StripeMarks, View};
use crate::admin::{
    Actor, Admin, AuditEntry, Diagnosis, Edit, FailingKey, Filter, HandledFilter, Misplaced, Ownership,
    RouteStatus, TopicFigures,
};
use crate::backend::{
    Backlog, Blame, BucketSet, Committed, Dedup, Due, DueRequest, FetchRequest, Fetched, KeyTransition,
    Lease, LeaseRequest, Leased, LowWater, Maintained, RelayId, RowId, Stored, StripeMark, Transitioned,
    Unserved, Wakeup, WakeupSignal, Writers,
};
use crate::error::{AppendError, StoreError};
use crate::id::{MessageId, OutboxId};
use crate::message::{Message, Outgoing};
use crate::name::{Consumer, KeyId, Route, Topic};
use crate::{Store, Transactional};

/// The operations of a layer under the name of an actor.
struct Acting<'l, L: ?Sized> {
    layer: &'l L,
    inner: Box<dyn Admin + 'l>,
}

type TxOf<'t, S> = <S as Transactional>::Tx<'t>;

macro_rules! calls {
    (
        store { $($Store:ident $store:ident($($s:ident: $S:ty),*) -> $Sa:ty;)* }
        frontier { $($Front:ident $front:ident($($f:ident: $F:ty),*) -> $Fa:ty;)* }
        admin { $($Admin:ident $admin:ident($($a:ident: $A:ty),*) -> $Aa:ty;)* }
        transactional { $($Tx:ident $tx:ident($($t:ident: $T:ty),*) -> Result<$Ta:ty, $Te:ty>;)* }
    ) => {
        /// A call of [`Store`], [`Admin`] or [`Transactional`] that can fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each is the method of that name")]
        pub enum StoreCall {
            $($Store,)* $($Front,)* $($Admin,)* $($Tx,)*
            Commit,
            /// Single wake-ups.
            Wakeups,
        }

        /// A store around another one.
        ///
        /// Every method forwards through [`around`](Self::around), which sees each call by name:
        /// override it for what concerns all calls, and single methods for what concerns these. A
        /// layer is a [`Store`] by itself; with [`TransactionalLayer`], also [`Transactional`].
        ///
        /// ```
        /// # extern crate outbox_contract as outbox;
        /// use outbox::{Store, StoreError};
        /// use outbox::backend::{StoreCall, StoreLayer};
        ///
        /// /// Logs what fails.
        /// struct Logged<S>(S);
        ///
        /// impl<S: Store> StoreLayer for Logged<S> {
        ///     type Inner = S;
        ///
        ///     fn inner(&self) -> &S {
        ///         &self.0
        ///     }
        ///
        ///     async fn around<T: Send, E: From<StoreError> + Send>(
        ///         &self,
        ///         call: StoreCall,
        ///         effect: impl Future<Output = Result<T, E>> + Send,
        ///     ) -> Result<T, E> {
        ///         effect.await.inspect_err(|_| eprintln!("{call:?} failed"))
        ///     }
        /// }
        ///
        /// fn is_store<S: Store>() {}
        /// fn log_of<S: Store>() {
        ///     is_store::<Logged<S>>();
        /// }
        /// ```
        pub trait StoreLayer: Send + Sync + 'static {
            /// The store inside.
            type Inner: Store + ?Sized;

            /// Returns the store inside.
            fn inner(&self) -> &Self::Inner;

            /// Performs a call whose effect is this future. The provided method awaits it.
            fn around<T: Send, E: From<StoreError> + Send>(
                &self,
                call: StoreCall,
                effect: impl Future<Output = Result<T, E>> + Send,
            ) -> impl Future<Output = Result<T, E>> + Send {
                let _ = call;
                effect
            }

            /// Forwards [`Store::name`].
            fn name(&self) -> &'static str {
                self.inner().name()
            }

            /// Forwards [`Store::history_kept`].
            fn history_kept(&self) -> Option<Duration> {
                self.inner().history_kept()
            }

            /// Forwards [`Store::wakeup_signal`].
            fn wakeup_signal(&self) -> &WakeupSignal {
                self.inner().wakeup_signal()
            }

            /// Forwards [`Store::wakeups`].
            fn wakeups(&self) -> BoxStream<'static, Wakeup> {
                self.inner().wakeups()
            }

            /// Returns a handle of the store inside whose calls pass [`around`](Self::around), as
            /// those of the layer itself do. A layer that overrides single methods of [`Admin`]
            /// overrides this one, too.
            fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
                Box::new(Acting { layer: self, inner: self.inner().acting_as(actor) })
            }

            $(
                #[doc = concat!("Forwards [`Store::", stringify!($store), "`].")]
                fn $store(&self, $($s: $S),*) -> impl Future<Output = Result<$Sa, StoreError>> + Send {
                    async move { self.around(StoreCall::$Store, self.inner().$store($($s),*)).await }
                }
            )*

            $(
                #[doc = concat!("Forwards [`Frontier::", stringify!($front), "`].")]
                fn $front(&self, $($f: $F),*) -> impl Future<Output = Result<$Fa, StoreError>> + Send {
                    async move { self.around(StoreCall::$Front, self.inner().frontier().$front($($f),*)).await }
                }
            )*

            $(
                #[doc = concat!("Forwards [`Admin::", stringify!($admin), "`].")]
                fn $admin(&self, $($a: $A),*) -> impl Future<Output = Result<$Aa, StoreError>> + Send {
                    async move { self.around(StoreCall::$Admin, self.inner().$admin($($a),*)).await }
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: StoreLayer> Store for L {
            fn name(&self) -> &'static str {
                StoreLayer::name(self)
            }

            fn frontier(&self) -> Frontier<'_> {
                match self.inner().frontier() {
                    Frontier::Single => Frontier::Single,
                    Frontier::Writers(_) => Frontier::Writers(self),
                    Frontier::Stripes(_) => Frontier::Stripes(self),
                }
            }

            fn history_kept(&self) -> Option<Duration> {
                StoreLayer::history_kept(self)
            }

            fn wakeup_signal(&self) -> &WakeupSignal {
                StoreLayer::wakeup_signal(self)
            }

            fn wakeups(&self) -> BoxStream<'static, Wakeup> {
                StoreLayer::wakeups(self)
            }

            $(
                async fn $store(&self, $($s: $S),*) -> Result<$Sa, StoreError> {
                    StoreLayer::$store(self, $($s),*).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: StoreLayer> Admin for L {
            fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
                StoreLayer::acting_as(self, actor)
            }

            $(
                async fn $admin(&self, $($a: $A),*) -> Result<$Aa, StoreError> {
                    StoreLayer::$admin(self, $($a),*).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: StoreLayer + ?Sized> Admin for Acting<'_, L> {
            fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
                self.layer.acting_as(actor)
            }

            $(
                async fn $admin(&self, $($a: $A),*) -> Result<$Aa, StoreError> {
                    self.layer.around(StoreCall::$Admin, self.inner.$admin($($a),*)).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Store + ?Sized> Store for Arc<S> {
            fn name(&self) -> &'static str {
                (**self).name()
            }

            fn frontier(&self) -> Frontier<'_> {
                (**self).frontier()
            }

            fn history_kept(&self) -> Option<Duration> {
                (**self).history_kept()
            }

            fn wakeup_signal(&self) -> &WakeupSignal {
                (**self).wakeup_signal()
            }

            fn wakeups(&self) -> BoxStream<'static, Wakeup> {
                (**self).wakeups()
            }

            $(
                async fn $store(&self, $($s: $S),*) -> Result<$Sa, StoreError> {
                    (**self).$store($($s),*).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Admin + ?Sized> Admin for Arc<S> {
            fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
                (**self).acting_as(actor)
            }

            $(
                async fn $admin(&self, $($a: $A),*) -> Result<$Aa, StoreError> {
                    (**self).$admin($($a),*).await
                }
            )*
        }

        /// A [`Transactional`] store around another one, whose transactions it uses.
        pub trait TransactionalLayer: StoreLayer<Inner: Transactional> + Sized {
            /// Forwards [`Transactional::max_transactions`].
            fn max_transactions(&self) -> Option<usize> {
                self.inner().max_transactions()
            }

            /// Forwards [`Transactional::commit`].
            fn commit(&self, tx: TxOf<'static, Self>) -> impl Future<Output = Committed> + Send {
                async move { self.inner().commit(tx).await }
            }

            /// Forwards [`Transactional::commit_and_begin`].
            fn commit_and_begin(
                &self,
                tx: TxOf<'static, Self>,
            ) -> impl Future<Output = (Committed, Option<TxOf<'static, Self>>)> + Send {
                async move { self.inner().commit_and_begin(tx).await }
            }

            $(
                #[doc = concat!("Forwards [`Transactional::", stringify!($tx), "`].")]
                fn $tx(&self, $($t: $T),*) -> impl Future<Output = Result<$Ta, $Te>> + Send {
                    async move { self.around(StoreCall::$Tx, self.inner().$tx($($t),*)).await }
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: TransactionalLayer> Transactional for L {
            type Tx<'t> = TxOf<'t, L::Inner>;
            type Connection = <L::Inner as Transactional>::Connection;

            fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
                <L::Inner as Transactional>::connection(tx)
            }

            async fn commit(&self, tx: TxOf<'static, Self>) -> Committed {
                TransactionalLayer::commit(self, tx).await
            }

            async fn commit_and_begin(
                &self,
                tx: TxOf<'static, Self>,
            ) -> (Committed, Option<TxOf<'static, Self>>) {
                TransactionalLayer::commit_and_begin(self, tx).await
            }

            fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
                self.inner().blame(error)
            }

            fn is_conflict(&self, error: &(dyn std::error::Error + 'static)) -> bool {
                self.inner().is_conflict(error)
            }

            fn max_idle(&self) -> Option<Duration> {
                self.inner().max_idle()
            }

            fn max_transactions(&self) -> Option<usize> {
                TransactionalLayer::max_transactions(self)
            }

            $(
                async fn $tx(&self, $($t: $T),*) -> Result<$Ta, $Te> {
                    TransactionalLayer::$tx(self, $($t),*).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Transactional> Transactional for Arc<S> {
            type Tx<'t> = S::Tx<'t>;
            type Connection = S::Connection;

            fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
                S::connection(tx)
            }

            async fn commit(&self, tx: S::Tx<'static>) -> Committed {
                (**self).commit(tx).await
            }

            async fn commit_and_begin(&self, tx: S::Tx<'static>) -> (Committed, Option<S::Tx<'static>>) {
                (**self).commit_and_begin(tx).await
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

            fn max_transactions(&self) -> Option<usize> {
                (**self).max_transactions()
            }

            $(
                async fn $tx(&self, $($t: $T),*) -> Result<$Ta, $Te> {
                    (**self).$tx($($t),*).await
                }
            )*
        }
    };
}

calls! {
    store {
        Migrate migrate() -> ();
        Check check() -> ();
        Lease lease(request: &LeaseRequest) -> Leased;
        GiveBack give_back(relay: RelayId, route: &Route, leases: &[Lease], low_water: &LowWater, leaving: bool) -> ();
        Fetch fetch(request: &FetchRequest) -> Fetched;
        FetchBelow fetch_below(request: &FetchRequest) -> Fetched;
        Due due(request: &DueRequest) -> Due;
        Settle settle(route: &Route, delivered: &[RowId]) -> ();
        Transition transition(transitions: &[KeyTransition]) -> Vec<Transitioned>;
        Elect elect(role: &str, relay: RelayId, lasts: Duration) -> bool;
        RecordRetention record_retention() -> ();
        Maintain maintain(limit: usize) -> Maintained;
        Backlog backlog(route: &Route) -> Backlog;
        Unserved unserved(after: Duration) -> Vec<Unserved>;
    }
    frontier {
        Writers writers() -> Writers;
        Stripes stripes(route: &Route, buckets: &BucketSet) -> Vec<StripeMark>;
    }
    admin {
        FailingKeys failing_keys(filter: &Filter) -> Vec<FailingKey>;
        Browse browse(view: View, filter: &Filter) -> Vec<Listed>;
        Steer steer(route: &Route, key: &KeyId, operation: KeyOperation) -> Steered;
        AppendAgain append_again(archive: Archive, filter: &Filter) -> u64;
        RequeueEdited requeue_edited(filter: &Filter, edit: &Edit) -> Option<MessageId>;
        Purge purge(filter: &Filter) -> u64;
        SetPaused set_paused(route: &Route, topic: Option<&Topic>, paused: bool) -> ();
        CancelScheduled cancel_scheduled(ids: &[MessageId]) -> u64;
        Identity identity() -> OutboxId;
        RenewIdentity renew_identity() -> OutboxId;
        Audit audit(filter: &Filter) -> Vec<AuditEntry>;
        Ownership ownership(route: &Route) -> Ownership;
        Routes routes() -> Vec<RouteStatus>;
        Topics topics(route: &Route) -> Vec<TopicFigures>;
        Misplaced misplaced() -> Vec<Misplaced>;
        Diagnose diagnose() -> Vec<Diagnosis>;
        CountHandled count_handled(filter: &HandledFilter) -> u64;
        Forget forget(filter: &HandledFilter) -> u64;
    }
    transactional {
        Begin begin() -> Result<TxOf<'static, Self>, StoreError>;
        Rollback rollback(tx: TxOf<'static, Self>) -> Result<(), StoreError>;
        Append append(tx: &mut TxOf<'_, Self>, messages: &[Outgoing]) -> Result<(), AppendError>;
        Fence fence(tx: &mut TxOf<'_, Self>, route: &Route, stored: &[&Stored]) -> Result<Vec<bool>, StoreError>;
        Deduplicate deduplicate(tx: &mut TxOf<'_, Self>, consumer: &Consumer, messages: &[&Message]) -> Result<Vec<Dedup>, StoreError>;
        IsHandled is_handled(consumer: &Consumer, id: MessageId) -> Result<bool, StoreError>;
    }
}

#[async_trait]
impl<L: StoreLayer> OpenWriters for L {
    async fn writers(&self) -> Result<Writers, StoreError> {
        StoreLayer::writers(self).await
    }
}

#[async_trait]
impl<L: StoreLayer> StripeMarks for L {
    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        StoreLayer::stripes(self, route, buckets).await
    }
}
