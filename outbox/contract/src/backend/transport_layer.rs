//! A layer around a transport, built like the [layers around stores](super::StoreLayer).

use std::sync::Arc;

use async_trait::async_trait;

use super::{Deliveries, Outcomes, PublishBatch, Subscription};
use crate::Transport;
use crate::admin::Diagnosis;
use crate::error::TransportError;
use crate::failure::Rejection;
use crate::message::Message;
use crate::name::Topic;

macro_rules! transport_calls {
    ($($call:ident($($c:ident: $C:ty),*) -> $answer:ty;)*) => {
        /// A transport around another one. Override what it does otherwise; it is a [`Transport`]
        /// by itself.
        pub trait TransportLayer: Send + Sync + 'static {
            /// The transport inside.
            type Inner: Transport + ?Sized;

            /// Returns the transport inside.
            fn inner(&self) -> &Self::Inner;

            /// Forwards [`Transport::name`].
            fn name(&self) -> &'static str {
                self.inner().name()
            }

            /// Forwards [`Transport::validate`].
            ///
            /// # Errors
            ///
            /// Those of the transport inside.
            fn validate(&self, message: &Message) -> Result<(), Rejection> {
                self.inner().validate(message)
            }

            /// Forwards [`Transport::is_confirmed_by_consumers`].
            fn is_confirmed_by_consumers(&self) -> bool {
                self.inner().is_confirmed_by_consumers()
            }

            $(
                #[doc = concat!("Forwards [`Transport::", stringify!($call), "`].")]
                fn $call(&self, $($c: $C),*) -> impl Future<Output = $answer> + Send {
                    async move { self.inner().$call($($c),*).await }
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<L: TransportLayer> Transport for L {
            fn name(&self) -> &'static str {
                TransportLayer::name(self)
            }

            fn validate(&self, message: &Message) -> Result<(), Rejection> {
                TransportLayer::validate(self, message)
            }

            fn is_confirmed_by_consumers(&self) -> bool {
                TransportLayer::is_confirmed_by_consumers(self)
            }

            $(
                async fn $call(&self, $($c: $C),*) -> $answer {
                    TransportLayer::$call(self, $($c),*).await
                }
            )*
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<T: Transport + ?Sized> Transport for Arc<T> {
            fn name(&self) -> &'static str {
                (**self).name()
            }

            fn validate(&self, message: &Message) -> Result<(), Rejection> {
                (**self).validate(message)
            }

            fn is_confirmed_by_consumers(&self) -> bool {
                (**self).is_confirmed_by_consumers()
            }

            $(
                async fn $call(&self, $($c: $C),*) -> $answer {
                    (**self).$call($($c),*).await
                }
            )*
        }
    };
}

transport_calls! {
    check() -> Result<(), TransportError>;
    diagnose(topics: &[Topic]) -> Result<Vec<Diagnosis>, TransportError>;
    publish(batch: PublishBatch, outcomes: &Outcomes) -> ();
    subscribe(subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError>;
    close() -> ();
}
