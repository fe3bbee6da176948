package mailappliance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Email is a message to send. From, To, Subject and one of Text, HTML,
// Template and Attachments are needed; a template may supply the subject.
// Addresses are "a@b.example" or "Name <a@b.example>".
type Email struct {
	From        string            `json:"from"`
	To          []string          `json:"to"`
	Cc          []string          `json:"cc,omitempty"`
	Bcc         []string          `json:"bcc,omitempty"`
	ReplyTo     string            `json:"reply_to,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Text        string            `json:"text,omitempty"`
	HTML        string            `json:"html,omitempty"`
	Template    string            `json:"template,omitempty"`  // a template's alias, instead of Text and HTML
	Variables   map[string]any    `json:"variables,omitempty"` // strings, numbers and booleans for the template
	Headers     map[string]string `json:"headers,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
	Attachments []Attachment      `json:"attachments,omitempty"`
	ScheduledAt *time.Time        `json:"scheduled_at,omitempty"` // when to send it, up to 30 days ahead; nil: at once
	Metadata    map[string]string `json:"metadata,omitempty"`     // your own values, which come back in Message and in events
}

// Batch is a list of up to 100 messages to send in one request.
type Batch struct {
	Emails []Email `json:"emails"`
	// OnError is "reject" (the default): one message that cannot be sent
	// refuses the batch; or "skip": the others are accepted.
	OnError string `json:"on_error,omitempty"`
}

// loaded is a copy of the batch with the attachments read.
func (b Batch) loaded() (any, *ConfigurationError) {
	emails := make([]Email, len(b.Emails))
	for i, email := range b.Emails {
		loaded, err := email.load()
		if err != nil {
			err.Message = fmt.Sprintf("email %d: %s", i, err.Message)
			return nil, err
		}
		emails[i] = loaded
	}
	return Batch{Emails: emails, OnError: b.OnError}, nil
}

// loaded is a copy of the email with the attachments read.
func (e Email) loaded() (any, *ConfigurationError) {
	loaded, err := e.load()
	return loaded, err
}

func (e Email) load() (Email, *ConfigurationError) {
	if field := e.notUTF8(); field != "" {
		return e, &ConfigurationError{Message: field + " is not UTF-8"}
	}
	attachments := make([]Attachment, len(e.Attachments)) // the caller's own stay as they are
	for i, attachment := range e.Attachments {
		loaded, err := attachment.load()
		if err != nil {
			return e, &ConfigurationError{Message: fmt.Sprintf("attachment %d", i), Err: err}
		}
		attachments[i] = loaded
	}
	e.Attachments = attachments
	return e, nil
}

// encode makes the body of a request.
func encode(content any) ([]byte, *ConfigurationError) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(content); err != nil {
		return nil, &ConfigurationError{Message: "the email cannot be written as JSON", Err: err}
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

// notUTF8 names a field that is not UTF-8. encoding/json would send such text
// altered.
func (e Email) notUTF8() string {
	texts := map[string][]string{
		"From": {e.From}, "To": e.To, "Cc": e.Cc, "Bcc": e.Bcc, "ReplyTo": {e.ReplyTo}, "Subject": {e.Subject},
		"Text": {e.Text}, "HTML": {e.HTML}, "Template": {e.Template}, "Tags": e.Tags,
	}
	for name, value := range e.Headers {
		texts["Headers"] = append(texts["Headers"], name, value)
	}
	for name, value := range e.Metadata {
		texts["Metadata"] = append(texts["Metadata"], name, value)
	}
	for name, value := range e.Variables {
		texts["Variables"] = append(texts["Variables"], name, fmt.Sprint(value))
	}
	for _, a := range e.Attachments {
		texts["Attachments"] = append(texts["Attachments"], a.Filename, a.ContentType, a.ContentID)
	}
	for field, values := range texts {
		for _, value := range values {
			if !utf8.ValidString(value) {
				return field
			}
		}
	}
	return ""
}

// Sent is an email that the appliance has accepted. Fields that the answer did
// not have are empty.
type Sent struct {
	ID              string            `json:"id"`
	Status          string            `json:"status"` // "queued"
	Source          string            `json:"source"` // "api"
	RequestID       string            `json:"request_id"`
	From            string            `json:"from"`
	To              []string          `json:"to"`
	Cc              []string          `json:"cc"`
	Bcc             []string          `json:"bcc"`
	ReplyTo         string            `json:"reply_to"`
	Subject         string            `json:"subject"`
	BillingStatus   string            `json:"billing_status"` // "reserved", "settled", "released"
	RecipientCount  int               `json:"recipient_count"`
	CreditsReserved int               `json:"credits_reserved"`
	Headers         map[string]string `json:"headers"`
	Tags            []string          `json:"tags"`
	Attachments     []AttachmentInfo  `json:"attachments"`
	ScheduledAt     time.Time         `json:"scheduled_at"` // zero: sent at once

	IdempotencyKey string `json:"-"` // given or made
	Replayed       bool   `json:"-"` // the appliance had accepted it before, under the same key
}

// SentBatch is a batch that the appliance has accepted, with one result per
// message, in order.
type SentBatch struct {
	Results   []BatchItem `json:"results"`
	Accepted  int         `json:"accepted"`
	Refused   int         `json:"refused"`
	RequestID string      `json:"request_id"`

	IdempotencyKey string `json:"-"` // given or made
	Replayed       bool   `json:"-"` // the appliance had accepted it before, under the same key
}

// BatchItem is the result of one message of a batch: ID if it was accepted,
// else Error and Code.
type BatchItem struct {
	Index           int    `json:"index"`
	ID              string `json:"id"`
	Status          string `json:"status"`
	RecipientCount  int    `json:"recipient_count"`
	CreditsReserved int    `json:"credits_reserved"`
	Error           string `json:"error"`
	Code            string `json:"code"`
}

// AttachmentInfo is an attachment as the appliance has accepted it.
type AttachmentInfo struct {
	Filename    string `json:"filename"`
	ContentType string `json:"content_type"`
	Size        int    `json:"size"` // bytes
	ContentID   string `json:"content_id"`
}

// Message is the status of an email. Fields that the answer did not have are
// empty.
type Message struct {
	ID              string      `json:"id"`
	Status          string      `json:"status"` // "queued", "delivered", "partial", "failed"
	Source          string      `json:"source"` // "smtp", "api", "test"
	From            string      `json:"from"`
	Subject         string      `json:"subject"`
	BillingStatus   string      `json:"billing_status"`
	RecipientCount  int         `json:"recipient_count"`
	CreditsReserved int         `json:"credits_reserved"`
	CreatedAt       time.Time   `json:"created_at"`
	Recipients      []Recipient `json:"recipients"`
	RequestID       string      `json:"request_id"`

	ScheduledAt time.Time         `json:"scheduled_at"` // zero: not scheduled
	Metadata    map[string]string `json:"metadata"`
}

// Final reports whether every recipient's result is final: the status is
// "delivered", "partial" or "failed".
func (m *Message) Final() bool {
	return m.Status == "delivered" || m.Status == "partial" || m.Status == "failed"
}

// Recipient is the status of one recipient of an email.
type Recipient struct {
	ID               string    `json:"id"`
	Email            string    `json:"email"`
	Status           string    `json:"status"` // "scheduled", "queued", "deferred", "delivered", "bounced", "failed"
	BillingStatus    string    `json:"billing_status"`
	AttemptCount     int       `json:"attempt_count"`
	LastSMTPCode     int       `json:"last_smtp_code"` // 0: no reply yet
	LastSMTPResponse string    `json:"last_smtp_response"`
	DeliveredAt      time.Time `json:"delivered_at"` // zero: not delivered
	BouncedAt        time.Time `json:"bounced_at"`   // zero: not bounced
}
