//! What each kernel has to do, by topic.

mod buffers;
mod calls;
mod connections;
mod files;
mod operations;
mod sends;

pub(super) use buffers::*;
pub(super) use calls::*;
pub(super) use connections::*;
pub(super) use files::*;
pub(super) use operations::*;
pub(super) use sends::*;
