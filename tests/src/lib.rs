//! End-to-end tests and checks of the workspace.
