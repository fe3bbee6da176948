# A Rails application with Action Mailbox. Arguments: the ingress password, Mailgun's signing key, and an empty directory.
# Each line of standard input is a request: ingress, path, headers, and the body in base64. Each line of output is the
# status of its answer, and the message that reached a mailbox.
ENV["RAILS_ENV"] = "production"
ENV["DATABASE_URL"] = "sqlite3:#{ARGV[2]}/rails.sqlite3"
ENV["RAILS_INBOUND_EMAIL_PASSWORD"], ENV["MAILGUN_INGRESS_SIGNING_KEY"] = ARGV[0], ARGV[1]
require "rails"
require "active_record/railtie"
require "active_storage/engine"
require "action_mailbox/engine"
require "json"

class Ingress < Rails::Application
  config.root = ARGV[2]
  config.eager_load = false
  config.secret_key_base = "x" * 64
  config.logger = Logger.new($stderr, level: Logger::WARN)
  config.hosts.clear if config.respond_to?(:hosts)
  config.active_storage.service_configurations = { files: { service: "Disk", root: File.join(ARGV[2], "files") } }
  config.active_storage.service = :files
  config.active_job.queue_adapter = :inline
  config.action_mailbox.incinerate = false
end
Rails.application.initialize!
ActiveRecord::Schema.verbose = false
ActiveRecord::Schema.define do
  create_table(:active_storage_blobs) do |t|
    t.string :key, :filename, :content_type, :checksum, :service_name
    t.text :metadata
    t.bigint :byte_size
    t.datetime :created_at
  end
  create_table(:active_storage_attachments) do |t|
    t.string :name, :record_type
    t.bigint :record_id, :blob_id
    t.datetime :created_at
  end
  create_table(:action_mailbox_inbound_emails) do |t|
    t.integer :status, default: 0
    t.string :message_id, :message_checksum
    t.timestamps
  end
end

class ApplicationMailbox < ActionMailbox::Base
  routing all: :seen
end

class SeenMailbox < ApplicationMailbox
  def process
    files = mail.attachments.map { |file| [file.filename, [file.decoded].pack("m0")] }
    $seen = { from: mail.from, to: mail.to, subject: mail.subject, files: files }
  end
end

$stdin.each_line do |line|
  asked = JSON.parse(line)
  ActionMailbox.ingress = asked["ingress"].to_sym
  $seen = nil
  environment = Rack::MockRequest.env_for(
    "https://example.com#{asked["path"]}", method: "POST", input: asked["body"].unpack1("m")
  )
  asked["headers"].each do |name, value|
    key = name.upcase.tr("-", "_")
    environment[key == "CONTENT_TYPE" ? key : "HTTP_#{key}"] = value
  end
  status, = Rails.application.call(environment)
  $stdout.puts JSON.generate({ status: status, mail: $seen })
  $stdout.flush
end
