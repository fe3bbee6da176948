package mailappliancetest_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
	"github.com/mail-appliance/mail-appliance-go/mailappliancetest"
)

var (
	background = context.Background()
	email      = mailappliance.Email{
		From: "a@example.com", To: []string{"Ada <ada@example.net>", "bounce-1@example.net"}, Cc: []string{"ADA@example.net"},
		Bcc: []string{"fail@example.net"}, Subject: "Grüße", Text: "Hi", Tags: []string{"x"},
	}
)

// Welcome is code under test: it takes a Mailer.
func Welcome(ctx context.Context, mail mailappliance.Mailer, address string) error {
	_, err := mail.Send(ctx, mailappliance.Email{
		From: "shop@example.com", To: []string{address}, Subject: "Welcome", Text: "Hello.",
	}, mailappliance.WithIdempotencyKey("welcome-"+address))
	return err
}

func TestWelcome(t *testing.T) {
	mail := mailappliancetest.NewRecorder()
	if err := Welcome(context.Background(), mail, "ada@example.net"); err != nil {
		t.Fatal(err)
	}
	sent := mail.Sent()
	if len(sent) != 1 || sent[0].Email.Subject != "Welcome" {
		t.Errorf("sent %+v", sent)
	}

	mail.FailNext(429, "rate_limited")
	if err := Welcome(context.Background(), mail, "bob@example.net"); !errors.Is(err, mailappliance.ErrRateLimited) {
		t.Errorf("error %v", err)
	}
}

// A batch is replayed whole; a scheduled email waits until it is moved or cancelled.
func TestBatchesAndSchedules(t *testing.T) {
	r := mailappliancetest.NewRecorder()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	scheduled := email
	scheduled.ScheduledAt = &at
	batch := mailappliance.Batch{Emails: []mailappliance.Email{email, scheduled}}
	key := mailappliance.WithIdempotencyKey("k")
	first, err := r.SendBatch(background, batch, key)
	if err != nil || first.Accepted != 2 || first.Replayed {
		t.Fatalf("%+v %v", first, err)
	}
	again, err := r.SendBatch(background, batch, key)
	if err != nil || !again.Replayed || !reflect.DeepEqual(again.Results, first.Results) || len(r.Sent()) != 2 {
		t.Errorf("%+v %v", again, err)
	}
	batch.OnError = "skip"
	if _, err := r.SendBatch(background, batch, key); !errors.Is(err, mailappliance.ErrIdempotencyConflict) {
		t.Errorf("%v", err)
	}
	moved, err := r.Reschedule(background, first.Results[1].ID, at.Add(time.Hour))
	if err != nil || !moved.ScheduledAt.Equal(at.Add(time.Hour)) || moved.Recipients[0].Status != "scheduled" {
		t.Errorf("%+v %v", moved, err)
	}
	if cancelled, err := r.Cancel(background, moved.ID); err != nil || cancelled.Status != "failed" {
		t.Errorf("%+v %v", cancelled, err)
	}
	for _, id := range []string{first.Results[0].ID, moved.ID} {
		if _, err := r.Cancel(background, id); !errors.Is(err, mailappliance.ErrConflict) {
			t.Errorf("%v", err)
		}
	}
	if _, err := r.Cancel(background, "msg_9"); !errors.Is(err, mailappliance.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestRecordsWhatIsSent(t *testing.T) {
	r := mailappliancetest.NewRecorder()
	e := email
	e.Attachments = []mailappliance.Attachment{{Filename: "a.txt", Reader: strings.NewReader("hello"), ContentID: "c"}}
	sent, err := r.Send(background, e)
	if err != nil {
		t.Fatal(err)
	}
	e.Attachments = []mailappliance.Attachment{{Filename: "a.txt", Content: []byte("hello"), ContentID: "c"}}
	want := []mailappliancetest.Sent{{ID: sent.ID, Email: e, IdempotencyKey: sent.IdempotencyKey}}
	if got := r.Sent(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if sent.Status != "queued" || sent.RecipientCount != 3 || sent.Replayed || len(sent.Attachments) != 1 || sent.Attachments[0].Size != 5 {
		t.Errorf("%+v", sent)
	}
}

func TestResults(t *testing.T) {
	tests := []struct {
		to              []string
		status, billing string
		recipients      []string
	}{
		{[]string{"a@example.net"}, "delivered", "settled", []string{"delivered"}},
		{[]string{"bounce@example.net"}, "failed", "released", []string{"bounced"}},
		{[]string{"bounce@example.net", "fail@example.net"}, "failed", "settled", []string{"bounced", "failed"}},
		{[]string{"Fine <a@example.net>", "fail@example.net", "A@EXAMPLE.NET"}, "partial", "settled", []string{"delivered", "failed"}},
	}
	for _, test := range tests {
		r := mailappliancetest.NewRecorder()
		sent, err := r.Send(background, mailappliance.Email{From: "a@example.com", To: test.to})
		if err != nil {
			t.Fatal(err)
		}
		message, err := r.Wait(background, sent.ID)
		if err != nil {
			t.Fatal(err)
		}
		var recipients []string
		for _, recipient := range message.Recipients {
			recipients = append(recipients, recipient.Status)
		}
		if message.Status != test.status || message.BillingStatus != test.billing || !reflect.DeepEqual(recipients, test.recipients) {
			t.Errorf("%v: %s %s %v", test.to, message.Status, message.BillingStatus, recipients)
		}
	}
}

func TestKeysAreRemembered(t *testing.T) {
	r := mailappliancetest.NewRecorder()
	key := mailappliance.WithIdempotencyKey("k")
	first, err := r.Send(background, email, key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Send(background, email, key)
	if err != nil || again.ID != first.ID || !again.Replayed {
		t.Errorf("%+v %v", again, err)
	}
	other := email
	other.Text = "Other"
	if _, err := r.Send(background, other, key); !errors.Is(err, mailappliance.ErrIdempotencyConflict) {
		t.Errorf("%v", err)
	}
	if n := len(r.Sent()); n != 1 {
		t.Errorf("%d sent, want 1", n)
	}
}

func TestFailures(t *testing.T) {
	r := mailappliancetest.NewRecorder()
	r.FailNext(402, "insufficient_credits")
	r.LoseNext()
	_, err := r.Send(background, email)
	var refused *mailappliance.Error
	if !errors.As(err, &refused) || refused.Status != 402 || !errors.Is(err, mailappliance.ErrInsufficientCredits) {
		t.Errorf("%v", err)
	}
	_, err = r.Send(background, email)
	var lost *mailappliance.ConnectionError
	if !errors.As(err, &lost) {
		t.Errorf("%v", err)
	}
	if _, err := r.Get(background, "msg_9"); !errors.Is(err, mailappliance.ErrNotFound) {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(background)
	cancel()
	if _, err := r.Send(ended, email); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if n := len(r.Sent()); n != 0 {
		t.Errorf("%d sent, want none", n)
	}
}

func TestRetriesByOption(t *testing.T) {
	r := mailappliancetest.NewRecorder(mailappliance.WithRetries(1))
	r.FailNext(503, "service_unavailable")
	if _, err := r.Send(background, email); err != nil || len(r.Sent()) != 1 {
		t.Errorf("%v", err)
	}
}

func TestSharedByGoroutines(t *testing.T) {
	r := mailappliancetest.NewRecorder()
	var group sync.WaitGroup
	for i := 0; i < 20; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			if err := Welcome(background, r, fmt.Sprintf("user%d@example.net", i)); err != nil {
				t.Error(err)
			}
		}(i)
	}
	group.Wait()
	if n := len(r.Sent()); n != 20 {
		t.Errorf("%d sent, want 20", n)
	}
}
