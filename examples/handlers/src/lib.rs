//! Handlers for the sandbox of `ash-sandbox`: each is a `cdylib`, listed as an example in Cargo.toml.

#![no_std]
