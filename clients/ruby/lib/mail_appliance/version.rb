# frozen_string_literal: true

module MailAppliance
  VERSION = "1.0.0"
end
