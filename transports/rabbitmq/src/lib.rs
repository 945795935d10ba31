//! Publishes to and consumes from RabbitMQ.
