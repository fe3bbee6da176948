# frozen_string_literal: true

require "helper"
require "stringio"
require "tempfile"

class TestModels < LibraryTest
  include MailAppliance

  def test_unknown_fields_are_ignored_and_missing_ones_are_nil
    message = Message.from_json({ "id" => "msg_1", "status" => "resting", "colour" => "red" })
    assert_equal ["msg_1", "resting", nil, nil], [message.id, message.status, message.subject, message.recipients]
    refute message.final?
  end

  def test_nested_values
    recipient = { "email" => "a@b", "status" => "delivered", "delivered_at" => "2026-11-16T12:00:00.25Z", "x" => 1 }
    created_at = "2026-11-16T13:00:00+01:00"
    message = Message.from_json({ "id" => "1", "created_at" => created_at, "recipients" => [recipient, 5] })
    assert_equal Time.utc(2026, 11, 16, 12), message.created_at
    assert_equal ["a@b"], message.recipients.map(&:email)
    assert_equal Time.utc(2026, 11, 16, 12, 0, Rational(1, 4)), message.recipients.first.delivered_at
    assert_nil message.recipients.first.bounced_at
    sent = SendResult.from_json({ "id" => "1", "attachments" => [{ "filename" => "a", "size" => 3 }] }, replayed: true)
    assert_equal ["a", 3], [sent.attachments.first.filename, sent.attachments.first.size]
    assert_predicate sent, :replayed?
  end

  def test_fields_of_another_type_are_no_error
    message = Message.from_json({ "id" => "1", "created_at" => "yesterday", "recipients" => "all" })
    assert_nil message.created_at
    assert_nil message.recipients
    assert_nil Message.from_json({ "id" => "1", "created_at" => 5 }).created_at
  end

  def test_values_are_frozen
    message = Message.from_json({ "id" => "1", "recipients" => [{ "email" => "a" }] })
    assert_raises(FrozenError) { message.status = "delivered" }
    assert_raises(FrozenError) { message.recipients << 1 }
    assert_raises(FrozenError) { message.recipients.first.email = "b" }
  end

  def test_attachments
    bytes = "\x00\r\n\xFF".b
    Tempfile.create(["invoice", ".pdf"]) do |file|
      file.binmode
      file.write(bytes)
      file.flush
      named = Attachment.from_path(file.path)
      assert_equal [File.basename(file.path), bytes], [named.filename, named.bytes]
      assert_equal "b.pdf", Attachment.from_path(file.path, filename: "b.pdf").filename
      File.open(file.path, "rb") do |stream|
        assert_equal bytes, Attachment.from_io(stream, filename: "a").bytes
        assert_predicate stream, :eof?
      end
    end
    inline = Attachment.from_io(StringIO.new("x"), filename: "a.png", content_type: "image/png", content_id: "logo")
    assert_equal ["a.png", "x", "image/png", "logo"], inline.to_a
    assert_predicate inline, :frozen?
    assert_equal '#<MailAppliance::Attachment "a.png" (1 bytes)>', inline.inspect
  end

  def test_a_path_that_cannot_be_read_is_named
    failed = assert_raises(ConfigurationError) { Attachment.from_path("/nowhere/a.pdf") }
    assert_includes failed.message, "/nowhere/a.pdf"
    assert_instance_of Errno::ENOENT, failed.cause
  end
end
