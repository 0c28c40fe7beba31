//! Small applications that show and test the runtime.
