//! What can be wrong with what a user says of inputs.

/// Why data for inputs cannot be used.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Text that is not of the form.
    #[error("`{item}` is not of the form NAME:SETTING,SETTING..; {}", super::data::SETTINGS)]
    Form {
        /// The text.
        item: String,
    },
    /// A setting that there is not.
    #[error("`{name}` has the setting `{setting}`, which is unknown; {}", super::data::SETTINGS)]
    Setting {
        /// The parameter.
        name: String,
        /// The setting.
        setting: String,
    },
    /// A value that a setting cannot have.
    #[error("`{setting}` of `{name}` cannot be `{value}`; expected {expected}")]
    Value {
        /// The parameter.
        name: String,
        /// The setting.
        setting: String,
        /// The value.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// Two settings that exclude each other.
    #[error("`{name}` is said to hold both {first} and {second}; give one of them")]
    Both {
        /// The parameter.
        name: String,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// Data for what is no input.
    #[error("`{name}`, for which data are given, is no input of kernel `{kernel}`, which has {known}")]
    Unknown {
        /// The kernel.
        kernel: String,
        /// The name.
        name: String,
        /// Names of the inputs.
        known: String,
    },
    /// Data for what kernels that run one after the other do not draw.
    #[error("`{name}`, for which data are given, {what}; data may be given for {drawn}")]
    NotDrawn {
        /// The name.
        name: String,
        /// What it is instead.
        what: &'static str,
        /// Names of what is drawn.
        drawn: String,
    },
    /// Data that a parameter of this type cannot hold.
    #[error("`{name}` of kernel `{kernel}` is {what}, which cannot hold `{given}`; allowed are {allowed}")]
    Kind {
        /// The kernel.
        kernel: String,
        /// The parameter.
        name: String,
        /// What it is.
        what: &'static str,
        /// What was given.
        given: String,
        /// Settings that are allowed.
        allowed: &'static str,
    },
}
