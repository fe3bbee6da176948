# frozen_string_literal: true

require "helper"
require "action_mailer"
require "mail_appliance/action_mailer"
require "mail_appliance/testing"

# The delivery method with the real ActionMailer.
class TestActionMailer < LibraryTest
  include MailAppliance

  class Mailer < ActionMailer::Base
    self.delivery_method = :mail_appliance
    self.logger = nil

    def plain(**fields)
      mail(from: "shop@example.com", to: "ann@example.net", subject: "Hello", body: "Hi", **fields)
    end

    def shown(**options)
      attachments["a.png"] = { content: "x", **options }
      mail(from: "shop@example.com", to: "ann@example.net", subject: "Hello") do |format|
        format.html { render(html: "<img src=\"#{attachments["a.png"].url}\">".html_safe) }
      end
    end

    def rich
      headers["Idempotency-Key"] = "order-7"
      headers["X-Service-Tag"] = "orders, vip"
      headers["X-Service-Metadata"] = ["order=7", "note = a=b"]
      headers["X-Service-Scheduled-At"] = "2030-01-02T03:04:05Z"
      headers["X-Order"] = "Größe 7"
      headers["List-Unsubscribe"] = "<mailto:stop@example.com>, <https://example.com/#{"x" * 100}>"
      headers["References"] = "<a@example.com> <b@example.com>"
      attachments["a.csv"] = { content: "a;b\r\nü\r\n", mime_type: "text/csv; charset=utf-8; header=present" }
      attachments["notes.txt"] = "one\r\ntwo\r\n"
      attachments["Übersicht.bin"] = BYTES
      attachments.inline["logo.png"] = "\x89PNG\r\n".b
      addresses = { to: ["\"Doe, Ann\" <ann@example.net>", "Émile <e@example.net>"], cc: "c@example.net",
                    bcc: ["d@example.net"], reply_to: "Help <help@example.com>" }
      mail(from: "Bücher <shop@example.com>", subject: "Grüße 🎉", **addresses) do |format|
        format.text { render(plain: "Hallo Ännchen\nzwei\n") }
        format.html { render(html: "<p>Ä</p><img src=\"#{attachments["logo.png"].url}\">".html_safe) }
      end
    end
  end

  BYTES = (0..255).to_a.pack("C*")

  def setup
    @mail = Testing::FakeClient.new
    Mailer.mail_appliance_settings = { client: @mail }
  end

  def deliver(message)
    message.deliver_now
    @mail.sent.last.message
  end

  def refused(name, message = Mailer.plain, &change)
    change&.call(message.message)
    failed = assert_raises(ConfigurationError) { message.deliver_now }
    assert_includes failed.message, name
    assert_empty @mail.sent
  end

  def test_a_plain_message
    message = { from: "shop@example.com", to: ["ann@example.net"], subject: "Hello", text: "Hi" }
    assert_equal message, deliver(Mailer.plain)
    assert_match(/\Aauto_/, @mail.sent.first.idempotency_key)
  end

  def test_a_rich_message
    message = deliver(Mailer.rich)
    assert_equal "order-7", @mail.sent.first.idempotency_key
    assert_equal %w[orders vip], message[:tags]
    assert_equal [{ order: "7", note: "a=b" }, "2030-01-02T03:04:05Z"], message.values_at(:metadata, :scheduled_at)
    assert_equal "\"Bücher\" <shop@example.com>", message[:from]
    assert_equal ["\"Doe, Ann\" <ann@example.net>", "\"Émile\" <e@example.net>"], message[:to]
    assert_equal [["c@example.net"], ["d@example.net"]], message.values_at(:cc, :bcc)
    assert_equal "Help <help@example.com>", message[:reply_to]
    assert_equal ["Grüße 🎉", "Hallo Ännchen\nzwei\n"], message.values_at(:subject, :text)
    headers = { "X-Order": "Größe 7", References: "<a@example.com> <b@example.com>",
                "List-Unsubscribe": "<mailto:stop@example.com>, <https://example.com/#{"x" * 100}>" }
    assert_equal headers, message[:headers]
    logo = message[:attachments].find { |file| file[:filename] == "logo.png" }
    assert_equal "image/png", logo[:content_type]
    assert_equal "<p>Ä</p><img src=\"cid:#{logo[:content_id]}\">", message[:html]
  end

  def test_attachments_keep_their_bytes
    files = deliver(Mailer.rich)[:attachments].to_h { |file| [file.delete(:filename), file] }
    assert_equal({ "logo.png" => "\x89PNG\r\n".b, "a.csv" => "a;b\r\nü\r\n".b, "notes.txt" => "one\r\ntwo\r\n",
                   "Übersicht.bin" => BYTES }, files.transform_values { |file| file[:content].unpack1("m0") })
    assert_equal "text/csv; charset=utf-8; header=present", files["a.csv"][:content_type]
    assert_equal ["logo.png"], files.select { |_, file| file[:content_id] }.keys
  end

  # The mail gem makes other Content-IDs each time.
  def test_a_message_that_is_made_again_is_equal
    assert_equal [false, true], Array.new(2) { Mailer.rich.deliver_now.delivery_method.result.replayed }
  end

  def test_own_content_ids_are_kept
    message = deliver(Mailer.shown(content_id: "<logo@shop>"))
    assert_equal ["logo@shop", "<img src=\"cid:logo@shop\">"], [message[:attachments][0][:content_id], message[:html]]
  end

  def test_the_result_is_kept
    delivered = Mailer.plain.deliver_now
    assert_equal "msg_1", delivered.delivery_method.result.id
  end

  def test_html_only
    message = deliver(Mailer.plain(content_type: "text/html", body: "<p>Hi</p>"))
    assert_equal [nil, "<p>Hi</p>"], message.values_at(:text, :html)
  end

  def test_an_image_that_the_html_shows_has_its_id
    message = deliver(Mailer.shown)
    assert_equal "<img src=\"cid:#{message[:attachments][0][:content_id]}\">", message[:html]
  end

  def test_what_the_interface_cannot_carry_is_named
    refused("2 addresses in From", Mailer.plain(from: %w[a@example.com b@example.com]))
    refused("2 addresses in Reply-To", Mailer.plain(reply_to: %w[a@example.com b@example.com]))
    refused("a group in To", Mailer.plain(to: "team: a@example.com, b@example.com;"))
    refused("without To", Mailer.plain(to: [], bcc: "a@example.net"))
    refused("envelope sender") { |mail| mail.smtp_envelope_from = "bounces@example.com" }
    refused("envelope sender", Mailer.plain(sender: "boss@example.com"))
    refused("envelope sender", Mailer.plain(return_path: "bounces@example.com"))
    refused("envelope recipient") { |mail| mail.smtp_envelope_to = "other@example.net" }
    refused("Message-ID <own@example.com>", Mailer.plain(message_id: "<own@example.com>"))
    refused("Date 2001", Mailer.plain(date: Time.utc(2001, 1, 1)))
    refused("Sender", Mailer.plain(sender: "shop@example.com"))
    refused("Resent-To", Mailer.plain("Resent-To" => "a@example.com"))
    refused("X-Service-Other", Mailer.plain("X-Service-Other" => "a"))
    refused("Content-Language", Mailer.plain("Content-Language" => "de"))
    refused("2 fields X-A") { |mail| mail.header.fields << Mail::Field.new("X-A", "1") << Mail::Field.new("X-a", "2") }
    refused("X-Service-Metadata without", Mailer.plain("X-Service-Metadata" => "order"))
    refused("X-Service-Metadata twice", Mailer.plain("X-Service-Metadata" => %w[a=1 a=2]))
    refused("2 fields Idempotency-Key") do |mail|
      2.times { |number| mail.header.fields << Mail::Field.new("Idempotency-Key", number.to_s) }
    end
  end

  def test_parts_that_the_interface_cannot_carry_are_named
    refused("text/calendar", Mailer.plain(content_type: "text/calendar"))
    refused("text/calendar") do |mail|
      mail.add_part(Mail::Part.new(content_type: "text/calendar", body: "BEGIN:VCALENDAR"))
    end
    refused("second part of type text/plain") do |mail|
      mail.add_part(Mail::Part.new(content_type: "text/plain", body: "b"))
    end
    refused("attachment without a file name") do |mail|
      mail.add_part(Mail::Part.new(content_type: "image/png", content_disposition: "attachment", body: "b"))
      mail.content_type = mail.content_type.sub("alternative", "mixed")
    end
    refused("file as an alternative (text/calendar)") do |mail|
      file = { content_type: "text/calendar", content_disposition: "attachment; filename=a.ics", body: "b" }
      mail.add_part(Mail::Part.new(**file))
    end
    refused("parameter format of text/plain", Mailer.plain(content_type: "text/plain; format=flowed"))
    refused("content-language of a part") do |mail|
      mail.add_part(Mail::Part.new(content_type: "text/html", content_language: "de", body: "b"))
    end
  end

  def test_a_signed_message_is_refused
    mail = Mail.new("From: shop@example.com\r\nTo: ann@example.net\r\n" \
                    "Content-Type: multipart/signed; boundary=b\r\n\r\n" \
                    "--b\r\n\r\nHi\r\n--b\r\nContent-Type: application/pgp-signature\r\n\r\nx\r\n--b--\r\n")
    mail.delivery_method DeliveryMethod, { client: @mail }
    failed = assert_raises(ConfigurationError) { mail.deliver! }
    assert_includes failed.message, "multipart/signed"
  end

  def test_a_bad_key_is_refused
    refused("idempotency_key", Mailer.plain("Idempotency-Key" => "ü"))
  end

  def test_the_errors_of_the_client_are_raised
    @mail.fail_next(402, "insufficient_credits")
    assert_raises(InsufficientCredits) { Mailer.plain.deliver_now }
  end

  def test_equal_settings_share_a_client_and_its_connections
    serving do |server|
      Mailer.mail_appliance_settings = { url: server.url, token: "t", timeout: 20 }
      3.times { Mailer.plain.deliver_now }
      Mailer.mail_appliance_settings = { url: server.url, token: "u" }
      Mailer.plain.deliver_now
      assert_equal [1, 1, 1, 2], server.requests.map(&:connection)
    end
  end

  def test_the_mail_gem_alone
    mail = Mail.new(from: "shop@example.com", to: "ann@example.net", subject: "Hello", body: "Grüße", charset: "UTF-8")
    mail.delivery_method DeliveryMethod, { client: @mail }
    mail.deliver!
    assert_equal "Grüße", @mail.sent.first.message[:text]
  end

  def test_a_received_message
    mail = Mail.new("From: shop@example.com\r\nTo: ann@example.net\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n" \
                    "X-Long: one\r\n two\r\nContent-Type: text/plain; charset=iso-8859-1\r\n" \
                    "Content-Transfer-Encoding: quoted-printable\r\n\r\nGr=FC=DFe\r\n")
    mail.delivery_method DeliveryMethod, { client: @mail }
    mail.deliver!
    assert_equal ["Grüße", "Grüße\n", { "X-Long": "one two" }],
                 @mail.sent.first.message.values_at(:subject, :text, :headers)
  end
end
