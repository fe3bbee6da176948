package mailappliance_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	mailappliance "github.com/mail-appliance/mail-appliance-go"
	"github.com/mail-appliance/mail-appliance-go/mailappliancetest"
)

var ctx = context.Background()

func ExampleNew() {
	client, err := mailappliance.New("https://mail.example.com",
		mailappliance.Basic("username", "password"), // or mailappliance.Token("ma_live_…")
		mailappliance.WithTimeout(10*time.Second),
		mailappliance.WithRetries(5),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.CloseIdleConnections()
	// Output:
}

func ExampleClient_Wait() {
	client := mailappliancetest.NewRecorder()
	sent, err := client.Send(ctx, mailappliance.Email{
		From: "shop@example.com", To: []string{"ada@example.net", "bounce@example.net"}, Subject: "Hello", Text: "Hi",
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := printResults(ctx, client, sent.ID); err != nil {
		log.Fatal(err)
	}
	message, err := client.Wait(ctx, sent.ID, mailappliance.WithWaitTimeout(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(message.Status)
	for _, recipient := range message.Recipients {
		fmt.Println(recipient.Email, recipient.Status, recipient.LastSMTPCode)
	}
	// Output:
	// ada@example.net: delivered
	// bounce@example.net: bounced
	// partial
	// ada@example.net delivered 250
	// bounce@example.net bounced 550
}

func printResults(ctx context.Context, mail mailappliance.Mailer, id string) error {
	message, err := mail.Wait(ctx, id)
	if err != nil {
		return err
	}
	for _, recipient := range message.Recipients {
		fmt.Printf("%s: %s\n", recipient.Email, recipient.Status)
	}
	return nil
}

func sendNews(ctx context.Context, mail mailappliance.Mailer, customers []string) error {
	batch := mailappliance.Batch{OnError: "skip"}
	for _, customer := range customers {
		batch.Emails = append(batch.Emails, mailappliance.Email{
			From: "news@example.com", To: []string{customer}, Subject: "News", Text: "Hello.",
		})
	}
	sent, err := mail.SendBatch(ctx, batch, mailappliance.WithIdempotencyKey("news-17"))
	if err != nil {
		return err
	}
	for _, item := range sent.Results {
		fmt.Printf("%d %s%s\n", item.Index, item.ID, item.Error) // an ID or an error
	}
	return nil
}

func ExampleClient_SendBatch() {
	mail := mailappliancetest.NewRecorder()
	if err := sendNews(ctx, mail, []string{"ada@example.net", "grace@example.net"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(mail.Sent()[1].Email.To, mail.Sent()[1].IdempotencyKey)
	// Output:
	// 0 msg_1
	// 1 msg_2
	// [grace@example.net] news-17
}

func schedule(ctx context.Context, mail mailappliance.Mailer, at time.Time) error {
	sent, err := mail.Send(ctx, mailappliance.Email{
		From: "orders@example.com", To: []string{"ada@example.net"}, Subject: "Your trial ends", Text: "Two days left.",
		ScheduledAt: &at, Metadata: map[string]string{"customer": "17"},
	})
	if err != nil {
		return err
	}
	if _, err := mail.Reschedule(ctx, sent.ID, at.Add(2*time.Hour)); err != nil {
		return err
	}
	_, err = mail.Cancel(ctx, sent.ID)
	if errors.Is(err, mailappliance.ErrConflict) {
		fmt.Println("already sent")
		return nil
	}
	return err
}

func ExampleClient_Reschedule() {
	mail := mailappliancetest.NewRecorder()
	if err := schedule(ctx, mail, time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)); err != nil {
		log.Fatal(err)
	}
	message, err := mail.Get(ctx, "msg_1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(message.Status, message.ScheduledAt, message.Metadata)
	// Output:
	// failed 2030-01-02 05:04:05 +0000 UTC map[customer:17]
}

func ExampleError() {
	client := mailappliancetest.NewRecorder()
	client.FailNext(http.StatusPaymentRequired, "insufficient_credits")
	client.FailNext(http.StatusForbidden, "forbidden")
	client.LoseNext()
	email := mailappliance.Email{From: "shop@example.com", To: []string{"ada@example.net"}, Subject: "Paid", Text: "Thank you."}
	for i := 0; i < 4; i++ {
		sent, err := client.Send(ctx, email, mailappliance.WithIdempotencyKey("order-1234-paid"))
		var refused *mailappliance.Error
		switch {
		case err == nil:
			fmt.Println("accepted:", sent.ID)
		case errors.Is(err, mailappliance.ErrInsufficientCredits):
			fmt.Println("no credits left")
		case errors.As(err, &refused):
			fmt.Println("refused:", refused.Status, refused.Code, refused.RequestID)
		default: // no answer: the message may have been accepted
			fmt.Println("send again with the same key:", mailappliance.IdempotencyKey(err))
		}
	}
	// Output:
	// no credits left
	// refused: 403 forbidden req_recorder
	// send again with the same key: order-1234-paid
	// accepted: msg_1
}

func ExampleAttachment() {
	client := mailappliancetest.NewRecorder()
	invoice, stream, picture := "README.md", strings.NewReader("a,b\n1,2\n"), []byte("\x89PNG")
	_, err := client.Send(ctx, mailappliance.Email{
		From:    "shop@example.com",
		To:      []string{"Ada <ada@example.net>"},
		Subject: "Your invoice",
		HTML:    `<img src="cid:logo"> Thank you.`,
		Attachments: []mailappliance.Attachment{
			{Path: invoice},
			{Filename: "orders.csv", Reader: stream},
			{Filename: "logo.png", Content: picture, ContentID: "logo"}, // an inline image
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, attachment := range client.Sent()[0].Email.Attachments {
		fmt.Println(attachment.Filename, len(attachment.Content) > 0)
	}
	// Output:
	// README.md true
	// orders.csv true
	// logo.png true
}

const secret = "whsec_example"

// What to do with a received message.
func fileTicket(event *mailappliance.Event) {
	email := event.Received
	if email == nil || email.AutoSubmitted { // answering a program makes a loop
		return
	}
	if email.InReplyToEmail != nil {
		fmt.Println("ticket", email.InReplyToEmail.Metadata["ticket"])
	}
	fmt.Println(email.From, email.DMARC, email.Subject, email.Text, len(email.Attachments))
}

func Example_received() {
	answered := &mailappliance.AnsweredEmail{Metadata: map[string]string{"ticket": "7"}}
	email := &mailappliance.ReceivedEmail{From: "ada@example.net", DMARC: "pass", Subject: "Hi", Text: "Hello", InReplyToEmail: answered}
	fileTicket(&mailappliance.Event{Received: email})
	fileTicket(&mailappliance.Event{})
	// Output:
	// ticket 7
	// ada@example.net pass Hi Hello 0
}

// The handler of a webhook URL.
func webhook(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	event, err := mailappliance.Verify(body, r.Header.Get(mailappliance.SignatureHeader), secret)
	if errors.Is(err, mailappliance.ErrSignatureInvalid) {
		http.Error(w, "not signed by the appliance", http.StatusBadRequest)
		return
	}
	if err != nil { // the secret is empty, for example because a variable is not set
		http.Error(w, "the receiver is not configured", http.StatusInternalServerError)
		return
	}
	if event.Type == "email.bounced" {
		fmt.Println(event.Data.To, "bounced:", event.Data.SMTPResponse)
	}
}

func ExampleVerify() {
	server := httptest.NewServer(http.HandlerFunc(webhook))
	defer server.Close()

	// What the appliance does:
	body := `{"id":"evt_1","type":"email.bounced","created_at":"2026-01-02T12:00:00Z",` +
		`"data":{"to":"ada@example.net","smtp_response":"550 5.1.1 User unknown"}}`
	now := time.Now().Unix()
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%d.%s", now, body)
	for _, t := range []int64{now, now - 1} { // the second is not what was signed
		request, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("Service-Signature", fmt.Sprintf("t=%d,v1=%x", t, mac.Sum(nil)))
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
		fmt.Println(response.StatusCode)
	}
	// Output:
	// ada@example.net bounced: 550 5.1.1 User unknown
	// 200
	// 400
}
