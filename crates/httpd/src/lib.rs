//! A web server.
