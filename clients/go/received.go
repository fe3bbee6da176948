package mailappliance

// ReceivedEmail is a message that the appliance received, in [Event]. Trust
// From only if DMARC is "pass". Do not answer a message that is AutoSubmitted:
// two programs that answer each other never stop.
type ReceivedEmail struct {
	InboundID string           `json:"inbound_id"`
	Envelope  ReceivedEnvelope `json:"envelope"`
	From      string           `json:"from"`
	To        []string         `json:"to"`
	Cc        []string         `json:"cc"`
	ReplyTo   []string         `json:"reply_to"`
	Subject   string           `json:"subject"`
	Text      string           `json:"text"`
	HTML      string           `json:"html"`
	Headers   []ReceivedHeader `json:"headers"`

	MessageID      string         `json:"message_id"`  // without brackets
	InReplyTo      string         `json:"in_reply_to"` // likewise
	InReplyToEmail *AnsweredEmail `json:"in_reply_to_email,omitempty"`

	Attachments []ReceivedFile `json:"attachments"`

	// Results of the checks of the sender: "pass", "fail", "softfail",
	// "neutral", "none", "temperror" or "permerror".
	SPF   string `json:"spf"`
	DKIM  string `json:"dkim"`
	DMARC string `json:"dmarc"`

	Size          int    `json:"size"`
	RawURL        string `json:"raw_url"` // valid for an hour from the event
	Truncated     bool   `json:"truncated"`
	AutoSubmitted bool   `json:"auto_submitted"`
	Test          bool   `json:"test,omitempty"`
}

// ReceivedEnvelope is what the sending server said in SMTP. From is empty for
// a bounce; To are the receiving addresses of the account.
type ReceivedEnvelope struct {
	From string   `json:"from"`
	To   []string `json:"to"`
}

// ReceivedHeader is a decoded header field.
type ReceivedHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// AnsweredEmail is the message of the account that a [ReceivedEmail] answers.
type AnsweredEmail struct {
	ID       string            `json:"id"`
	Metadata map[string]string `json:"metadata"`
}

// ReceivedFile is an attachment of a [ReceivedEmail]. Its URL is valid for an
// hour from the event.
type ReceivedFile struct {
	Number      int    `json:"number"`
	Filename    string `json:"filename"`
	ContentType string `json:"content_type"`
	Size        int    `json:"size"`
	URL         string `json:"url"`
}
