//! Writing of responses to a connection. Nothing here knows why a response was chosen.

pub(crate) mod clock;
pub(crate) mod head;
pub(crate) mod plain;
pub(crate) mod prepared;
pub(crate) mod responder;
pub(crate) mod sent;
