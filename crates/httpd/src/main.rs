//! The web server.
fn main() {}
