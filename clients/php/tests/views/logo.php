<img src="<?= $message->embedData("\x89PNG", 'logo.png', 'image/png') ?>">
