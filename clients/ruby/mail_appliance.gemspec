# frozen_string_literal: true

require_relative "lib/mail_appliance/version"

Gem::Specification.new do |spec|
  spec.name = "mail_appliance"
  spec.version = MailAppliance::VERSION
  spec.summary = "The client of the mail appliance: send mail, follow it, verify webhooks."
  spec.description = "Sends transactional email through a mail appliance over HTTP, with idempotency keys, retries, " \
                     "time-outs and webhook verification; has a delivery method for ActionMailer. " \
                     "Standard library only."
  spec.authors = ["The mail appliance"]
  spec.required_ruby_version = ">= 3.0"
  spec.files = Dir.chdir(__dir__) { Dir["README.md", "lib/**/*.rb", "sig/**/*.rbs"] }
  spec.require_paths = ["lib"]
  spec.metadata = { "rubygems_mfa_required" => "true" }
end
