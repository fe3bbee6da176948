"""The limits of a message, each with its unit and origin."""

from typing import Final

from appliance.times import DAY

# By the interface.
SUBJECT_LENGTH: Final = 500  # characters
RECIPIENTS: Final = 50  # unique addresses across to, cc and bcc
MESSAGE_SIZE: Final = 10 * 1024 * 1024  # bytes of assembled MIME; exactly this many is allowed
ATTACHMENTS: Final = 20  # per message
TAGS: Final = 20  # per message
VARIABLES: Final = 32  # keys

# By the project's decisions.
KEY_LENGTH: Final = 255  # characters of an Idempotency-Key
TAG_LENGTH: Final = 64  # printable ASCII characters
HEADER_NAME_LENGTH: Final = 76  # characters
HEADER_VALUE_LENGTH: Final = 998  # octets after encoding, as a line of RFC 5322 2.1.1
ALIAS_LENGTH: Final = 64  # characters of a template's alias
TIME_LENGTH: Final = 64  # characters of an RFC 3339 time, which needs at most 35
SCHEDULED_AHEAD: Final = 30 * DAY  # microseconds from the request to the time a message is due
BATCH_MESSAGES: Final = 100  # messages of one batch
METADATA: Final = 20  # keys
METADATA_KEY_LENGTH: Final = 64  # characters
METADATA_VALUE_LENGTH: Final = 512  # characters
STREAM_LENGTH: Final = 64  # characters

# By RFC 5321 4.5.3.1 and RFC 1035 2.3.4.
LOCAL_PART_LENGTH: Final = 64  # octets
DOMAIN_LENGTH: Final = 253  # octets of the A-label form, without the final dot
ADDRESS_LENGTH: Final = 254  # octets: a path has 256 with its angle brackets
RETURN_PATH_LENGTH: Final = 227  # octets: the token before the @ has 26

# Our own: they keep the cost of a hostile body proportional to its size.
REPLY_TO: Final = 10  # addresses of a request that came through a door
ADDRESS_ENTRIES: Final = 200  # entries in one of to, cc, bcc, repeated addresses included
DISPLAY_NAME_LENGTH: Final = 255  # characters; quoted, it fits a header line
MAILBOX_LENGTH: Final = 1024  # characters of an address with its name, which needs at most 770
HEADERS: Final = 100  # custom headers
VARIABLE_NAME_LENGTH: Final = 64  # characters
NUMBER_BITS: Final = 1024  # of an integer among the variables: the range of a double, 308 digits
FILENAME_LENGTH: Final = 255  # octets, what a file system holds
CONTENT_TYPE_LENGTH: Final = 255  # characters: RFC 6838 4.2 allows 127 + 127 for type and subtype
CONTENT_ID_LENGTH: Final = 128  # characters
JSON_DEPTH: Final = 32  # levels of nesting; a send request needs three
HEADER_SIZE: Final = 256 * 1024  # bytes of a submitted message's header; large mailbox providers take about as much
HEADER_LINES: Final = 5_000  # in a submitted header: that size in lines of 52 octets
HEADER_FIELDS: Final = 1_000  # in a submitted header
FROM_LENGTH: Final = 4 * 1024  # octets of a submitted From, a name of 255 characters in encoded words included
ENCODED_WORDS: Final = 2_000  # in the displayed fields of a submitted header: 50 long names need 500
HOPS: Final = 100  # Received fields, RFC 5321 6.3: more is a loop
JSON_VALUES: Final = 50_000  # values in one body; a full request has fewer than 4,000
BATCH_JSON_VALUES: Final = 400_000  # values in the body of a batch: 100 full requests
SERIES: Final = 1_000  # messages of one request of another provider's client
SERIES_PART: Final = 4 * 1024 * 1024  # bytes of its requests that are in memory at once, unless one is larger
SERIES_SIZE: Final = 320 * 1024 * 1024  # bytes of all its requests: ten batches have as many
BATCH_ASSEMBLED: Final = 32 * 1024 * 1024  # bytes of all assembled messages of a batch: twice a body of 16 MiB

# Of the wire, RFC 5322 2.1.1 and RFC 2047 2.
LINE_LENGTH: Final = 998  # octets without CRLF, never exceeded
HEADER_LINE_LENGTH: Final = 78  # octets aimed at in a header
ENCODED_LINE_LENGTH: Final = 76  # octets of a header line that holds an encoded word
ENCODED_WORD_LENGTH: Final = 75  # octets of one encoded word

# For parsing stored messages, which may be written to be expensive; the rest is dropped.
RAW_LENGTH: Final = 8 * 1024  # octets decoded per field: 500 characters need at most half
FIELD_BYTES: Final = 32 * 1024  # read of a field with parameters: a file name of 255 octets needs about 1,500
PARAMETERS: Final = 200  # read of a field
PARAMETER_NAME_LENGTH: Final = 60  # octets; longer names are ignored
TEXT_BYTES: Final = 1024 * 1024  # shown of each text
PART_HEADER_BYTES: Final = 256 * 1024  # of the header of a message or part; the rest counts as body
FIELDS: Final = 200  # shown of the message's header, and read of a part's
PARTS: Final = 200  # in all
DEPTH: Final = 10  # nested multiparts; a deeper one is shown as a file
TOTAL_HEADER_LINES: Final = 20_000  # of all headers in the message
CANDIDATES: Final = 5_000  # lines that start like a delimiter
